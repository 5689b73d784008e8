
"use strict";
// Hovering over a policy in the figure shows its numbers; clicking it shows how to deploy it.
const tip = document.getElementById("tip");
const picked = document.getElementById("picked");

function pick(row) {
  for (const other of document.querySelectorAll("tr.picked")) other.classList.remove("picked");
  row.classList.add("picked");
  const title = document.createElement("p");
  title.textContent = row.dataset.tip;
  picked.replaceChildren(title, row.querySelector(".deploy dl").cloneNode(true));
}

function show(point, row) {
  tip.textContent = row.dataset.tip;
  tip.hidden = false;
  const at = point.getBoundingClientRect();
  const left = at.left + at.width / 2 - tip.offsetWidth / 2;
  tip.style.left = Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8)) + scrollX + "px";
  tip.style.top = at.top - tip.offsetHeight - 8 + scrollY + "px";
}

for (const point of document.querySelectorAll("a.point")) {
  const row = document.querySelector(point.getAttribute("href"));
  point.querySelector("title").remove(); // the page's own tip replaces the browser's
  point.setAttribute("aria-label", row.dataset.tip);
  for (const name of ["pointerenter", "focus"]) point.addEventListener(name, () => show(point, row));
  for (const name of ["pointerleave", "blur"]) point.addEventListener(name, () => { tip.hidden = true; });
  point.addEventListener("click", (event) => { event.preventDefault(); pick(row); });
}
const first = document.querySelector("tr.recommended");
if (first) pick(first);
