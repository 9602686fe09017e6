// Where a page's data comes from: the server, or what a report carries.

// Browsers end what is under way when a network comes or goes, such as a container's, often several times within a second.
const PAUSES = [0, 300, 1000, 2000];

/** Asks the server. `parameters` gives the page's time and variables. */
export class Live {
  constructor(uid, parameters) {
    this.uid = uid;
    this.parameters = parameters;
    this.stopper = new AbortController();
  }

  /** Gives up what is under way, since the page asks for something else now. */
  stop() {
    this.stopper.abort();
    this.stopper = new AbortController();
  }

  board() {
    return this.ask(`/api/boards/${encodeURIComponent(this.uid)}`, this.parameters());
  }

  data(key, width) {
    const parameters = this.parameters();
    parameters.set("panel", key);
    // Rounded, so that two browsers of nearly the same size share an answer.
    parameters.set("width", String(Math.max(100, Math.ceil(width / 100) * 100)));
    return this.ask(`/api/boards/${encodeURIComponent(this.uid)}/data`, parameters);
  }

  annotations() {
    return this.ask(`/api/boards/${encodeURIComponent(this.uid)}/annotations`, this.parameters());
  }

  boards() {
    return this.ask("/api/boards");
  }

  alerts() {
    return this.ask("/api/alerts");
  }

  async ask(path, parameters) {
    const query = parameters?.toString();
    const address = query ? `${path}?${query}` : path;
    const { signal } = this.stopper;
    let found;
    for (const pause of PAUSES) {
      if (pause) await new Promise((done) => setTimeout(done, pause));
      try {
        found = await asked(address, signal);
        break;
      } catch (error) {
        if (error.name === "AbortError") throw error;
      }
    }
    if (!found) throw new Error("This page's server does not answer; is `agl panels` still running?");
    if (!found.response.ok) throw new Error(found.answer.error ?? `the server answered ${found.response.status}`);
    return found.answer;
  }
}

async function asked(address, signal) {
  const response = await fetch(address, { signal });
  const answer = await response.json().catch((error) => (error instanceof SyntaxError ? {} : Promise.reject(error)));
  return { response, answer };
}

/** Gives what a report has recorded. */
export class Recorded {
  constructor(recorded, alerts) {
    this.recorded = recorded;
    this.fired = alerts;
  }

  async data(key) {
    return this.recorded.data[key];
  }

  async annotations() {
    return this.recorded.annotations;
  }

  async boards() {
    return { boards: [] };
  }

  async alerts() {
    return { alerts: this.fired.map((alert) => ({ ...alert, state: "firing", since: "" })) };
  }
}
