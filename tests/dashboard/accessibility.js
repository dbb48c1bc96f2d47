() => {
  const found = [];
  const name = (node) => `<${node.tagName.toLowerCase()}${node.id ? "#" + node.id : ""}> ${(node.textContent || "").trim().slice(0, 40)}`;
  const seen = (node) => {
    if (!node.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true })) return false;
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1;
  };

  // Names and labels
  const textOf = (node) => (node.getAttribute("aria-label") || (node.getAttribute("aria-labelledby") || "").split(/\s+/).map((id) => document.getElementById(id)?.textContent || "").join(" ") || node.textContent || node.getAttribute("title") || "").trim();
  for (const node of document.querySelectorAll("a[href], button")) {
    if (node.checkVisibility() && !textOf(node)) found.push(`no name: ${name(node)}`);
  }
  for (const node of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    const label = [...(node.labels || [])].map((each) => each.textContent.trim()).join("") || node.getAttribute("aria-label");
    if (!label) found.push(`no label: ${name(node)} ${node.name}`);
  }
  for (const node of document.querySelectorAll("svg")) {
    if (node.closest("[aria-hidden=true]") || node.parentElement.closest("svg")) continue;
    if (node.getAttribute("role") !== "img" || !node.getAttribute("aria-label")) found.push(`no name: svg.${node.getAttribute("class")}`);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption?.textContent.trim()) found.push(`no name: table ${name(table)}`);
    for (const cell of table.querySelectorAll("th")) if (!cell.scope) found.push(`no scope: ${name(cell)}`);
  }
  for (const each of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    if (each.matches("dialog:not([open])")) continue;
    for (const id of ((each.getAttribute("aria-labelledby") || "") + " " + (each.getAttribute("aria-describedby") || "")).trim().split(/\s+/)) {
      if (!document.getElementById(id)) found.push(`points nowhere: ${name(each)} ${id}`);
    }
  }

  // Structure
  if (!document.documentElement.lang) found.push("no language");
  if (!document.title.trim()) found.push("no title");
  if (document.querySelectorAll("main").length !== 1) found.push("not one main landmark");
  const regions = [...document.querySelectorAll("nav")].map(textLabel);
  function textLabel(node) { return node.getAttribute("aria-label") || ""; }
  if (regions.some((label) => !label)) found.push("a navigation without a name");
  let level = 0;
  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((node) => node.checkVisibility());
  if (headings.filter((node) => node.tagName === "H1").length !== 1) found.push("not one heading of the first level");
  for (const node of headings) {
    const own = Number(node.tagName[1]);
    if (own > level + 1) found.push(`heading skips a level: ${name(node)}`);
    level = own;
  }
  const ids = new Set();
  for (const node of document.querySelectorAll("[id]")) {
    if (ids.has(node.id)) found.push(`id twice: ${node.id}`);
    ids.add(node.id);
  }

  // Focus: in the order of the document, each visible when it has it
  for (const node of document.querySelectorAll("[tabindex]")) if (node.tabIndex > 0) found.push(`tabindex above 0: ${name(node)}`);
  for (const node of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea")) {
    if (!seen(node)) continue;
    const box = node.getBoundingClientRect();
    const inText = node.tagName === "A" && getComputedStyle(node).display === "inline";
    const small = node.type === "checkbox" && node.closest("label");
    if (!inText && !small && Math.min(box.width, box.height) < 24) found.push(`smaller than 24 px: ${name(node)} ${box.width}x${box.height}`);
  }

  // Contrast, from the computed colours
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (colour) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => top.slice(0, 3).map((value, at) => value * top[3] + under[at] * (1 - top[3]));
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, two) => {
    const [high, low] = [light(one), light(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const done = new Set();
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || done.has(node) || node.closest("title, script, .hidden") || !seen(node)) continue;
    done.add(node);
    const style = getComputedStyle(node);
    const under = ground(node.closest("svg") ? node.closest("svg").parentElement : node);
    const ink = channels(node.closest("svg") ? style.fill : style.color);
    const value = ratio(over(ink, under), under);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (value < (large ? 3 : 4.5)) found.push(`contrast ${value.toFixed(2)}: ${name(node)}`);
  }
  for (const node of document.querySelectorAll("input:not([type=hidden]):not([type=checkbox]), select, textarea")) {
    if (!seen(node)) continue;
    const value = ratio(channels(getComputedStyle(node).borderTopColor).slice(0, 3), ground(node.parentElement));
    if (value < 3) found.push(`contrast of the edge ${value.toFixed(2)}: ${node.name}`);
  }
  return found;
}
