// How the map answers pointer, wheel and keys.
function listen(map) {
  const world = map.world,
    at = (event) => {
      const box = world.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
  world.addEventListener("pointerdown", (event) => {
    map.pointers.set(event.pointerId, at(event));
    map.pressed = at(event);
    map.moved = false;
    world.focus({ preventScroll: true });
    try {
      world.setPointerCapture(event.pointerId);
    } catch {
      /* a pointer that is already gone */
    }
  });
  world.addEventListener("pointermove", (event) => {
    const [x, y] = at(event),
      before = map.pointers.get(event.pointerId);
    if (!before) {
      map.hover(map.near(x, y), event.clientX, event.clientY);
      return;
    }
    if (map.pointers.size === 2) {
      const other = [...map.pointers.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]),
        now = Math.hypot(x - other[0], y - other[1]);
      map.zoom(now / Math.max(was, 1), (x + other[0]) / 2, (y + other[1]) / 2);
      map.moved = true;
    } else if (map.moved || Math.hypot(x - map.pressed[0], y - map.pressed[1]) > 4) {
      map.moved = true;
      hideTip();
      world.classList.add("dragging");
      map.move(x - before[0], y - before[1]);
    }
    map.pointers.set(event.pointerId, [x, y]);
  });
  const up = (event) => {
    const down = map.pointers.delete(event.pointerId);
    world.classList.remove("dragging");
    if (event.type === "pointerup" && down && !map.moved) {
      const [x, y] = at(event);
      map.choose(map.near(x, y, event.pointerType === "touch" ? 24 : 14));
    }
  };
  world.addEventListener("pointerup", up);
  world.addEventListener("pointercancel", up);
  world.addEventListener("pointerleave", () => map.hover(null));
  world.addEventListener("dblclick", (event) => map.zoom(2, ...at(event)));
  world.addEventListener(
    "wheel",
    (event) => {
      if (document.activeElement !== world && !event.ctrlKey) return; // until it is clicked, the page scrolls over it
      event.preventDefault();
      map.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), ...at(event));
    },
    { passive: false },
  );
  world.addEventListener("keydown", (event) => key(map, event));
  world.addEventListener("focus", () => map.hint());
  world.addEventListener("blur", () => map.hint());
}
function key(map, event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (way) walk(map, ...way);
  else if (event.key === "+" || event.key === "=") map.zoom(1.4);
  else if (event.key === "-") map.zoom(1 / 1.4);
  else if (event.key === "0") map.reset();
  else if (event.key === "Escape") map.choose(null);
  else return;
  event.preventDefault();
}
// The nearest image within 60 degrees of a direction.
function walk(map, dx, dy) {
  const x = map.chosen === null ? map.width / 2 : map.sx(map.chosen),
    y = map.chosen === null ? map.height / 2 : map.sy(map.chosen);
  let best = null,
    least = Infinity;
  for (let i = 0; i < map.size; i++) {
    if (i === map.chosen || !map.shown(i)) continue;
    const ax = map.sx(i) - x,
      ay = map.sy(i) - y,
      far = Math.hypot(ax, ay),
      ahead = ax * dx + ay * dy;
    if ((map.chosen === null || ahead > far * 0.5) && far < least) {
      best = i;
      least = far;
    }
  }
  if (best !== null) map.choose(best, true);
}
