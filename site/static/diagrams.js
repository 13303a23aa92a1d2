// Draws each diagram in the colours of the page, and again when the reader changes them.
const diagrams = [...document.querySelectorAll("pre.mermaid")].map((element) => ({ element, text: element.textContent }));
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
}

if (diagrams.length > 0) {
  draw();
  system.addEventListener("change", draw);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
}
