"use strict";
// Brings the content of a page up to date every two seconds.
const PERIOD = 2000;
const live = document.getElementById("live");
const said = document.getElementById("said");
const lost = document.getElementById("lost");
let shown = null;
let saying = document.getElementById("saying")?.textContent;

// What tells an element again after the content was replaced.
const mark = (element) =>
  element.closest("summary") ? "summary " + element.textContent : element.getAttribute("href") ?? element.getAttribute("aria-label");

function show(text) {
  const open = [...live.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
  const scrolled = new Map([...live.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]));
  const focused = live.contains(document.activeElement) ? mark(document.activeElement) : null;
  live.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  for (const summary of live.querySelectorAll("details > summary")) {
    summary.parentElement.open = open.includes(summary.textContent);
  }
  for (const one of live.querySelectorAll(".scroll")) {
    one.scrollLeft = scrolled.get(one.getAttribute("aria-label")) ?? 0;
  }
  if (focused) {
    [...live.querySelectorAll("a, summary, [tabindex]")].find((one) => mark(one) === focused)?.focus({ preventScroll: true });
  }
  const says = document.getElementById("saying")?.textContent;
  if (says && says !== saying) {
    said.textContent = saying = says;
  }
}

async function update() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.pathname + "?part", { cache: "no-store" });
      const text = await answer.text();
      lost.hidden = answer.ok;
      if (answer.ok && text !== shown) {
        show(text);
        shown = text;
      }
    } catch {
      lost.hidden = false;
      said.textContent = lost.textContent;
    }
  }
  setTimeout(update, PERIOD);
}
setTimeout(update, PERIOD);
