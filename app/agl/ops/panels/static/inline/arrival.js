// In the live page's head, before all that it loads: when a script or style does not arrive, the page is loaded once more.
// Browsers end what is under way when a network comes or goes, such as a container's, often several times within a second,
// and ask for no script again.

{
  const PAUSE = 1000;
  let seen = false;

  const tell = () => {
    const note = document.createElement("p");
    note.className = "note error";
    note.setAttribute("role", "alert");
    note.textContent = "⚠ A part of this page did not arrive. Load it again; is `agl panels` still running?";
    document.body.prepend(note);
  };

  const missing = ({ target }) => {
    if (seen || !(target instanceof HTMLScriptElement || target instanceof HTMLLinkElement)) return;
    seen = true;
    if (performance.getEntriesByType("navigation")[0]?.type !== "reload") setTimeout(() => location.reload(), PAUSE);
    else if (document.body) tell();
    else addEventListener("DOMContentLoaded", tell);
  };

  // Such errors do not bubble.
  addEventListener("error", missing, true);
}
