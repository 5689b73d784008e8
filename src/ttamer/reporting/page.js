
const tip = document.getElementById("tip");
for (const mark of document.querySelectorAll(".mark")) {
  const title = mark.querySelector("title");
  mark.dataset.tip = title.textContent;
  mark.addEventListener("pointerenter", event => {
    tip.textContent = mark.dataset.tip; tip.hidden = false; title.remove();
    const box = tip.getBoundingClientRect(), gap = 14;
    tip.style.left = Math.max(4, Math.min(event.clientX + gap, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, event.clientY - box.height - gap) + "px";
  });
  mark.addEventListener("pointerleave", () => { tip.hidden = true; });
}
