// Draws each diagram in the colours of the page, and again when the reader changes them.
const diagrams = [...document.querySelectorAll("pre.mermaid")].map((element) => ({ element, text: element.textContent }));
const LEAST_SCALE = 0.75; // Smaller text cannot be read on a phone: the diagram scrolls instead.
const system = matchMedia("(prefers-color-scheme: dark)");

async function draw() {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && system.matches);
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral" });
  for (const { element, text } of diagrams) {
    element.removeAttribute("data-processed");
    element.textContent = text;
  }
  await mermaid.run({ nodes: diagrams.map(({ element }) => element) });
  for (const { element } of diagrams) {
    const drawn = element.querySelector("svg");
    drawn.style.minWidth = `${drawn.viewBox.baseVal.width * LEAST_SCALE}px`;
  }
}

if (diagrams.length > 0) {
  draw();
  system.addEventListener("change", draw);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
}
