// Where a page's data comes from: the server, or what a report carries.

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
    let response;
    try {
      response = await fetch(query ? `${path}?${query}` : path, { signal: this.stopper.signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("This page's server does not answer; is `agl panels` still running?");
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
    return answer;
  }
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
