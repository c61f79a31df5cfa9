// Small helps: everything here works without it, too.
"use strict";

// Parts of a page that show the present are fetched again while the page is visible, and left alone while they are used.
function refresh() {
  const parts = [...document.querySelectorAll("[data-live]")];
  if (!parts.length) return;
  const pause = Math.max(...parts.map((part) => Number(part.dataset.live))) * 1000;
  setTimeout(async () => {
    const chosen = document.getSelection();
    if (document.visibilityState === "visible" && (!chosen || chosen.isCollapsed)) {
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" } });
        if (answer.ok) replace(parts, await answer.text());
      } catch { /* the console is away: what is shown stays, and the next try may find it again */ }
    }
    refresh();
  }, pause);
}

function replace(parts, text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const fresh = [...page.querySelectorAll("[data-live]")];
  if (fresh.length !== parts.length) return;
  parts.forEach((part, place) => {
    if (part.contains(document.activeElement) || part.innerHTML === fresh[place].innerHTML) return;
    const kept = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    part.replaceChildren(...fresh[place].childNodes);
    part.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = kept[at] || 0; });
  });
  const [was, is] = [document, page].map((one) => one.querySelector("[data-verdict]"));
  if (was && is) { was.textContent = is.textContent; was.className = is.className; }
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") document.querySelectorAll("details.menu[open]").forEach((menu) => { menu.open = false; });
  if (event.target.closest("input, select, textarea, dialog")) return;
  const link = before === "g" && document.querySelector(`.side [data-key="${CSS.escape(event.key)}"]`);
  before = event.key;
  if (link) { event.preventDefault(); location.href = link.href; }
  else if (event.key === "?") document.getElementById("keys")?.showModal();
  else if (event.key === "/") {
    const field = document.querySelector("main input[type=search], main input:not([type=hidden]):not([type=checkbox])");
    if (field) { event.preventDefault(); field.focus(); }
  }
});

document.addEventListener("click", (event) => {
  document.querySelectorAll("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; });
  const all = event.target.closest("input[data-all]");
  if (all) all.closest("form").querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`).forEach((one) => { one.checked = all.checked; });
});

refresh();
