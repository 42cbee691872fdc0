"use strict";
// Pictures of arenas: Ctrl and the wheel, or two fingers, zoom at the mouse; dragging moves, a double
// click shows all again, and a box below the mouse is described.  A picture is an svg in data units,
// steps across and blocks of bytes up, inside one that has the axes.
for (const figure of document.querySelectorAll("figure.plan")) {
  const outer = figure.querySelector("svg");
  const inner = outer.querySelector("svg");
  const [width, height] = figure.dataset.all.split(" ").map(Number);
  const block = Number(figure.dataset.block);
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip";
  let [x, y, w, h] = [0, 0, width, height];

  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB"];
    let i = 0;
    for (; n >= 1024 && i < 3; i++) n /= 1024;
    return `${n.toFixed(i && n < 100 ? 1 : 0)} ${units[i]}`;
  };
  const show = () => {
    w = Math.min(width, Math.max(w, Math.min(4, width)));
    h = Math.min(height, Math.max(h, Math.min(16, height)));
    x = Math.min(width - w, Math.max(0, x));
    y = Math.min(height - h, Math.max(0, y));
    inner.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
    for (const tick of outer.querySelectorAll(".tick")) {
      const part = Number(tick.dataset.part);
      tick.textContent = tick.classList.contains("x")
        ? Math.round(x + part * w)
        : bytes(block * (height - y - (1 - part) * h));
    }
  };
  const at = (event) => {
    const box = inner.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  const zoom = (factor, across, down) => {
    x += across * w * (1 - factor);
    y += down * h * (1 - factor);
    w *= factor;
    h *= factor;
    show();
  };
  inner.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(1.0015 ** event.deltaY, ...at(event));
  }, { passive: false });
  inner.addEventListener("dblclick", () => {
    [x, y, w, h] = [0, 0, width, height];
    show();
  });
  for (const button of figure.querySelectorAll("button")) {
    button.hidden = false;
    button.addEventListener("click", () => zoom(Number(button.dataset.factor), 0.5, 0.5));
  }
  let from = null;
  inner.addEventListener("pointerdown", (event) => {
    from = at(event);
    inner.setPointerCapture(event.pointerId);
  });
  inner.addEventListener("pointerup", () => (from = null));
  inner.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (from !== null) {
      x += (from[0] - here[0]) * w;
      y += (from[1] - here[1]) * h;
      from = here;
      show();
    }
    const box = document.elementsFromPoint(event.clientX, event.clientY).find((e) => e.matches(".boxes rect"));
    figure.classList.toggle("on", Boolean(box));
    if (!box) return;
    tip.textContent = box.querySelector("title").textContent;
    const frame = figure.getBoundingClientRect();
    const left = event.clientX - frame.left + 14;
    const fits = left + tip.offsetWidth <= frame.width;
    tip.style.left = `${fits ? left : Math.max(0, left - 28 - tip.offsetWidth)}px`;
    tip.style.top = `${event.clientY - frame.top + 14}px`;
  });
  inner.addEventListener("pointerleave", () => figure.classList.remove("on"));
}
