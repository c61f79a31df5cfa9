// The live tail: asks for what came since the last answer, and shows the newest messages on top. All of it is text.
"use strict";
(() => {
  const [list, state, pause] = ["tail", "state", "pause"].map((id) => document.getElementById(id));
  if (!list) return;
  const topic = list.dataset.topic;
  const shownMax = 500;
  let from = "", passed = 0, stopped = false;

  function cell(text, style) {
    const made = document.createElement("td");
    made.textContent = text;
    made.className = style;
    return made;
  }

  function line(message) {
    const row = document.createElement("tr");
    const link = document.createElement("a");
    link.href = `/messages/${encodeURIComponent(message.topic)}/${encodeURIComponent(message.message_id)}`;
    const moment = new Date(message.time_ms);
    link.textContent = moment.toLocaleTimeString("sv") + "." + String(message.time_ms % 1000).padStart(3, "0");
    const head = cell("", "nowrap");
    head.append(link);
    row.append(head, cell(message.queue, "number wide"), cell(message.offset, "number wide"), cell(message.tag, "wide"), cell(message.keys.join(" "), "wide"), cell(message.body, "body mono"));
    return row;
  }

  async function ask() {
    if (!stopped && document.visibilityState === "visible") {
      try {
        const answer = await fetch(`/messages/tail.json?${new URLSearchParams({ topic, from })}`);
        if (!answer.ok) throw new Error(answer.status);
        const told = await answer.json();
        from = told.from;
        passed += told.passed;
        list.prepend(...told.messages.reverse().map(line));
        while (list.childElementCount > shownMax) list.lastElementChild.remove();
        state.textContent = [list.childElementCount ? "" : state.dataset.waiting, passed ? `${passed.toLocaleString()} ${state.dataset.passed}` : ""].filter(Boolean).join(" · ");
      } catch { state.textContent = state.dataset.away; }
    }
    setTimeout(ask, 1000);
  }

  pause.addEventListener("click", () => {
    stopped = !stopped;
    pause.textContent = stopped ? pause.dataset.go : pause.dataset.pause;
  });
  ask();
})();
