"use strict";
// Keeps the page of an open request fresh: on each event the part that lives is taken anew from the server.
const live = document.querySelector("[data-live]");
if (live) {
  let seen = null;
  const source = new EventSource(live.dataset.live);
  source.onmessage = async (message) => {
    if (seen === null) { seen = message.data; return; }
    if (message.data === seen) return;
    seen = message.data;
    if (live.contains(document.activeElement) && document.activeElement.matches("input, textarea")) return;
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!fresh) return;
    live.replaceChildren(...fresh.childNodes);
    if (!fresh.dataset.live) source.close();
  };
}
