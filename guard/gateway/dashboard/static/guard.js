// The dashboard's script: live parts, confirmations in a dialog, values of charts, the theme.
// Everything works without it, by full pages and without live updates.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  root.classList.add("js");

  // -- Theme ---------------------------------------------------------------------------------
  const theme = byId("theme");
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);
  const showTheme = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  if (theme) {
    theme.hidden = false;
    showTheme();
    systemIsDark.addEventListener("change", showTheme);
    theme.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      document.cookie = `guard_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
      showTheme();
    });
  }

  // -- The viewer's time zone: pages of spend show their days -----------------------------------
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const hasZone = () => document.cookie.split("; ").includes(`guard_zone=${zone}`);
  if (document.body.dataset.live && !hasZone()) {
    document.cookie = `guard_zone=${zone}; path=/; max-age=31536000; samesite=strict`;
    if (document.querySelector("[data-zoned]") && hasZone()) location.reload();
  }

  // -- Parts of the page that follow the gateway ---------------------------------------------
  const notice = byId("notice");
  let paused = false;
  let asking = false;
  let again = false;
  let generation = 0;

  function parse(text) {
    return new DOMParser().parseFromString(text, "text/html");
  }

  function isTyping(part) {
    const at = document.activeElement;
    return part.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
  }

  function swap(fresh) {
    for (const part of document.querySelectorAll("[data-live-part]")) {
      const next = fresh.getElementById(part.id);
      if (!next || part.isEqualNode(next)) continue;
      if (isTyping(part)) {
        swapItems(part, next);
        continue;
      }
      const at = document.activeElement;
      const focused = part.contains(at) ? { id: at.id, href: at.getAttribute("href"), plot: at.closest(".chart")?.id } : null;
      const known = new Set([...part.querySelectorAll("tr[id]")].map((row) => row.id));
      part.replaceChildren(...[...next.childNodes].map((node) => document.importNode(node, true)));
      if (known.size) {
        for (const row of part.querySelectorAll("tr[id]")) if (!known.has(row.id)) row.classList.add("fresh");
      }
      if (focused) refocus(part, focused);
    }
    const badge = byId("badge")?.textContent.trim() || "";
    const count = parseInt(badge, 10) || 0;
    const title = fresh.title || document.title;
    document.title = count ? `(${count}) ${title}` : title;
  }

  // While somebody types an answer, leave that form alone and only add and remove its neighbours.
  function swapItems(part, next) {
    const list = part.querySelector("ul.inbox");
    const fresh = next.querySelector("ul.inbox");
    if (!list || !fresh) return;
    for (const item of [...list.children]) {
      if (!next.querySelector(`#${CSS.escape(item.id)}`) && !item.contains(document.activeElement)) item.remove();
    }
    for (const item of fresh.children) {
      if (!byId(item.id)) list.append(document.importNode(item, true));
    }
  }

  function refocus(part, focused) {
    let target = focused.id ? byId(focused.id) : null;
    if (!target && focused.href) target = [...part.querySelectorAll("a[href]")].find((a) => a.getAttribute("href") === focused.href);
    if (!target && focused.plot) target = byId(focused.plot)?.querySelector(".plot");
    (target || byId("main")).focus({ preventScroll: true });
  }

  async function refresh() {
    if (paused || document.querySelector("[data-live-part]") === null) return;
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    const mine = ++generation;
    try {
      const reply = await fetch(location.href, { headers: { "X-Guard-Live": "1" }, cache: "no-store" });
      if (reply.status === 401) return leave();
      if (reply.ok && mine === generation) swap(parse(await reply.text()));
    } catch {
      // The stream reports that the gateway does not answer.
    } finally {
      asking = false;
      if (again) {
        again = false;
        setTimeout(refresh, 250);
      }
    }
  }

  function leave() {
    location.assign(`/sign-in?return_to=${encodeURIComponent(location.pathname + location.search)}`);
  }

  // -- The stream ----------------------------------------------------------------------------
  const address = document.body.dataset.live;
  const SILENCE_MS = 7000;
  let source = null;
  let lastWord = Date.now();
  let wasLost = false;

  function lost(isLost) {
    byId("lost").hidden = !isLost;
    byId("live-state").className = `live-state ${isLost ? "off" : "on"}`;
    byId("live-text").textContent = isLost ? "Disconnected" : "Live";
    if (wasLost && !isLost) refresh();
    wasLost = isLost;
  }

  function connect() {
    if (!address || source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("health", (event) => {
      lastWord = Date.now();
      const health = JSON.parse(event.data);
      const trouble = byId("trouble");
      if (trouble.textContent !== health.text) trouble.textContent = health.text;
      trouble.hidden = health.ok;
      lost(false);
    });
    source.addEventListener("change", refresh);
    source.addEventListener("signed-out", leave);
    source.addEventListener("error", () => {
      lost(true);
      if (source && source.readyState === EventSource.CLOSED) {
        // Refused: the session may have ended, or the gateway is starting.
        source = null;
        setTimeout(connect, 2000);
        refresh();
      }
    });
  }

  if (address) {
    connect();
    setInterval(() => {
      if (!document.hidden && Date.now() - lastWord > SILENCE_MS) lost(true);
    }, 1000);
    // Browsers allow few connections to one host: a hidden tab closes its own.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        source?.close();
        source = null;
      } else {
        lastWord = Date.now();
        connect();
        refresh();
      }
    });
  }

  const pause = byId("pause");
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Resume" : "Pause";
      if (!paused) refresh();
    });
  }

  // -- Ages ----------------------------------------------------------------------------------
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Number(time.dataset.ago)) / 1000));
      const unit = UNITS.find(([size]) => seconds >= size);
      const text = unit ? `${Math.floor(seconds / unit[0])} ${unit[1]} ago` : "now";
      if (time.textContent !== text) time.textContent = text;
    }
  }, 1000);

  // -- Moments in the viewer's own time, in the title ------------------------------------------
  function showOwnTime(event) {
    const time = event.target instanceof Element ? event.target.closest("time[datetime]") || event.target.querySelector?.("time[datetime]") : null;
    if (!time || time.dataset.own || event.target.querySelectorAll("time").length > 1) return;
    time.dataset.own = "1";
    const own = new Date(time.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
    time.title += `, ${own} your time`;
  }
  document.addEventListener("pointerover", showOwnTime);
  document.addEventListener("focusin", showOwnTime);

  // -- Confirmations -------------------------------------------------------------------------
  const dialog = byId("dialog");
  let opener = null;

  async function open(link) {
    opener = { id: link.id, href: link.getAttribute("href") };
    let panel = null;
    try {
      const reply = await fetch(link.href, { headers: { "X-Guard-Live": "1" }, cache: "no-store" });
      if (reply.status === 401) return leave();
      panel = parse(await reply.text()).getElementById("panel");
    } catch {
      lost(true);
      return;
    }
    if (!panel) {
      location.assign(link.href);
      return;
    }
    dialog.replaceChildren(document.importNode(panel, true));
    dialog.showModal();
    (dialog.querySelector("[autofocus]") || dialog.querySelector("button")).focus();
  }

  dialog?.addEventListener("close", () => {
    dialog.replaceChildren();
    if (opener) refocus(document, opener);
    opener = null;
  });

  document.addEventListener("click", (event) => {
    const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    const link = event.target.closest("a[data-dialog]");
    if (link && plain && dialog) {
      event.preventDefault();
      open(link);
      return;
    }
    if (event.target.closest("[data-close]") && dialog?.open) {
      event.preventDefault();
      dialog.close();
    }
    if (event.target === dialog) dialog.close();
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const field = byId(copy.dataset.copy);
      field.select();
      navigator.clipboard?.writeText(field.value).then(() => (copy.textContent = "Copied"));
    }
  });

  // Forms that change something without leaving the page.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("[data-async]") || !byId("lost")) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const buttons = form.querySelectorAll("button");
    buttons.forEach((button) => (button.disabled = true));
    generation++;
    try {
      // Not `form.action`: a field of that name would shadow it.
      const reply = await fetch(form.getAttribute("action"), { method: "POST", body });
      if (reply.status === 401) return leave();
      const fresh = parse(await reply.text());
      if (!reply.ok) {
        fail(form, fresh.getElementById("problem-detail")?.textContent || "That did not work.");
        return;
      }
      document.activeElement?.blur();
      if (dialog.open) dialog.close();
      if (new URL(reply.url).pathname === location.pathname && document.querySelector("main [data-live-part]")) swap(fresh);
      else {
        location.assign(reply.url);
        return;
      }
      notice.textContent = fresh.getElementById("notice")?.textContent || "Done.";
      notice.hidden = false;
    } catch {
      fail(form, "The gateway does not answer; nothing is known to have changed.");
    } finally {
      buttons.forEach((button) => (button.disabled = false));
    }
  });

  function fail(form, text) {
    let problem = form.querySelector(".problem");
    if (!problem) {
      problem = document.createElement("p");
      problem.className = "problem";
      problem.setAttribute("role", "alert");
      form.prepend(problem);
    }
    problem.textContent = text;
    problem.hidden = false;
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  byId("preview")?.focus();

  // -- Values of charts ----------------------------------------------------------------------
  function choose(chart, index) {
    const hits = [...chart.querySelectorAll(".hit")];
    const tip = chart.querySelector(".tip");
    hits.forEach((hit, at) => hit.classList.toggle("on", at === index));
    chart.dataset.at = String(index);
    const hit = hits[index];
    tip.hidden = !hit;
    if (!hit) return;
    const [value, label, detail] = tip.children;
    value.textContent = hit.dataset.value;
    label.textContent = hit.dataset.label;
    detail.textContent = hit.dataset.detail;
    const grid = chart.querySelector(".chart-grid").getBoundingClientRect();
    const box = hit.getBoundingClientRect();
    const half = tip.offsetWidth / 2;
    const x = Math.min(Math.max(box.left + box.width / 2 - grid.left, half), grid.width - half);
    tip.style.left = `${x}px`;
    tip.style.top = `${Math.max(tip.offsetHeight, (box.height * Number(hit.dataset.top)) / 100)}px`;
  }

  function chartOf(event) {
    return event.target instanceof Element ? event.target.closest(".chart") : null;
  }

  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event);
    for (const other of document.querySelectorAll(".chart[data-at]")) {
      if (other !== chart && !other.contains(document.activeElement)) choose(other, -1);
    }
    const hit = event.target instanceof Element ? event.target.closest(".hit") : null;
    if (chart && hit) choose(chart, [...chart.querySelectorAll(".hit")].indexOf(hit));
  });
  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    if (!chart || !/^(Arrow(Left|Right)|Home|End|Escape)$/.test(event.key)) return;
    const last = chart.querySelectorAll(".hit").length - 1;
    const at = Number(chart.dataset.at ?? -1);
    const wanted = { Home: 0, End: last, Escape: -1, ArrowLeft: at < 0 ? last : Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1) }[event.key];
    event.preventDefault();
    choose(chart, wanted);
    const hit = chart.querySelectorAll(".hit")[wanted];
    chart.querySelector(".chart-voice").textContent = hit ? `${hit.dataset.label}: ${hit.dataset.value}, ${hit.dataset.detail}` : "";
  });
  document.addEventListener("focusout", (event) => {
    const chart = chartOf(event);
    if (chart) choose(chart, -1);
  });
})();
