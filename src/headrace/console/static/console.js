// What the page does by itself: shortcuts, the tip over a chart, copying, the menu on a phone. All else is the server's.
(() => {
  const places = {
    o: "/", t: "/topics", q: "/queues", g: "/groups", d: "/dead-letters", i: "/timers", x: "/transactions", m: "/messages",
    a: "/apps", p: "/pipeline", c: "/clients", l: "/alerts", u: "/access", n: "/cluster",
  };
  let after = 0;
  const go = (path) => {
    const place = `/${location.pathname.split("/")[1]}${path === "/" ? "" : path}`;
    // Before the socket is there the server hears nothing.
    if (window.socket?.connected) emitEvent("sub_pages_navigate", place);
    else location.href = place;
  };
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
  const known = document.cookie.includes(`headrace_zone=${encodeURIComponent(zone)}`);
  document.cookie = `headrace_zone=${encodeURIComponent(zone)};path=/;max-age=31536000;samesite=lax`;
  // Times are written by the server: once it knows the zone.
  if (!known && document.cookie.includes("headrace_zone=")) addEventListener("load", () => location.reload());
  const typing = (target) => target.closest("input, textarea, select, [contenteditable=true]");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing(event.target)) return event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "/") {
      event.preventDefault();
      return (document.querySelector("[data-filter]") ?? document.querySelector("[data-find]"))?.focus();
    }
    if (event.key === "?") return emitEvent("console_help");
    if (event.key === "g") return void (after = Date.now());
    if (Date.now() - after < 1500 && places[event.key]) {
      after = 0;
      go(places[event.key]);
    }
  });
  document.addEventListener("click", (event) => {
    const copied = event.target.closest("[data-copy]");
    if (copied) {
      const text = copied.dataset.copy.startsWith("/") ? location.origin + copied.dataset.copy : copied.dataset.copy;
      navigator.clipboard?.writeText(text);
      const before = copied.textContent;
      copied.textContent = "Copied";
      setTimeout(() => (copied.textContent = before), 1200);
    }
    const side = document.querySelector(".side");
    if (event.target.closest("#help")) emitEvent("console_help");
    if (event.target.closest("#theme")) {
      const themes = ["auto", "dark", "light"];
      const now = document.cookie.match(/headrace_theme=(\w+)/)?.[1] ?? "auto";
      const next = themes[(themes.indexOf(now) + 1) % 3];
      document.cookie = `headrace_theme=${next};path=/;max-age=31536000;samesite=lax`;
      Quasar.Dark.set(next === "auto" ? "auto" : next === "dark");
      event.target.textContent = `Theme: ${next}`;
    }
    if (event.target.closest(".menu-button")) side?.classList.toggle("open");
    else if (side?.classList.contains("open") && (event.target.closest(".side a") || !event.target.closest(".side"))) side.classList.remove("open");
  });
  let typed = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-live]");
    if (!form) return;
    clearTimeout(typed);
    typed = setTimeout(() => form.requestSubmit(), 200);
  });
  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest?.(".plot");
    document.querySelectorAll(".tip").forEach((tip) => { if (tip.parentElement !== plot) hide(tip.parentElement); });
    if (plot) show(plot, event);
  });
  const hide = (plot) => {
    plot.querySelector(".tip").style.display = "none";
    plot.querySelector(".cursor").style.visibility = "hidden";
  };
  const show = (plot, event) => {
    const points = JSON.parse(plot.dataset.points);
    const box = plot.querySelector("svg").getBoundingClientRect();
    const width = Number(plot.dataset.width);
    const x = ((event.clientX - box.left) / box.width) * width;
    if (!points.length) return;
    const nearest = points.reduce((best, each) => (Math.abs(each[0] - x) < Math.abs(best[0] - x) ? each : best));
    const tip = plot.querySelector(".tip");
    tip.textContent = nearest[1];
    tip.style.display = "block";
    const left = (nearest[0] / width) * box.width;
    tip.style.left = `${Math.min(left + 10, box.width - tip.offsetWidth)}px`;
    tip.style.top = "4px";
    const cursor = plot.querySelector(".cursor");
    cursor.setAttribute("x1", nearest[0]);
    cursor.setAttribute("x2", nearest[0]);
    cursor.style.visibility = "visible";
  };
})();
