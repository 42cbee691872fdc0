"use strict";
// The values of a chart at the mouse.  Each line has its places in `d`, its values in `data-y`.
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg");
  const lines = [...chart.querySelectorAll("path.line")].map((path) => ({
    label: path.dataset.label,
    places: path.getAttribute("d").slice(1).split(/[ML]/).map((pair) => pair.split(",").map(Number)),
    x: path.dataset.x.split(" "),
    y: path.dataset.y.split(" "),
    group: path.parentNode,
  }));
  if (!lines.length) continue;
  const create = (name, kind, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    made.setAttribute("class", kind);
    return parent.appendChild(made);
  };
  const box = svg.viewBox.baseVal;
  const [top, bottom] = chart.dataset.span.split(" ");
  const cursor = create("line", "cursor", svg);
  for (const line of lines) {
    line.spot = create("circle", "spot", line.group);
    line.spot.setAttribute("r", 4.5);
  }
  const tip = document.createElement("div");
  tip.className = "tip";
  chart.append(tip);

  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / box.width;
    const mouse = (event.clientX - frame.left) / scale;
    let nearest = null;
    for (const line of lines)
      for (const [x] of line.places)
        if (nearest === null || Math.abs(x - mouse) < Math.abs(nearest - mouse)) nearest = x;
    const told = [];
    for (const line of lines) {
      const i = line.places.findIndex(([x]) => Math.abs(x - nearest) < 0.11);
      line.spot.classList.toggle("at", i >= 0);
      if (i < 0) continue;
      line.spot.setAttribute("cx", line.places[i][0]);
      line.spot.setAttribute("cy", line.places[i][1]);
      if (!told.length) told.push(`${chart.dataset.x} ${line.x[i]}`);
      told.push(`${line.label} ${line.y[i]}`);
    }
    for (const [name, value] of [["x1", nearest], ["x2", nearest], ["y1", top], ["y2", bottom]])
      cursor.setAttribute(name, value);
    tip.textContent = told.join("\n");
    chart.classList.add("on");
    const right = nearest * scale + 14;
    const fits = right + tip.offsetWidth <= frame.width;
    tip.style.left = `${fits ? right : Math.max(0, nearest * scale - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${svg.offsetTop || chart.querySelector("figcaption").offsetHeight + 12}px`;
  });
  svg.addEventListener("pointerleave", () => chart.classList.remove("on"));
}
