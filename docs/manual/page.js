// The theme's own switch needs highlight.js.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => { document.documentElement.dataset.bsTheme = dark.matches ? "dark" : "light"; };
dark.addEventListener("change", follow);
follow();

// A browser starts no worker from the disk: a search needs a server.
if (location.protocol === "file:") {
  document.querySelector('[data-bs-target="#mkdocs_search_modal"]')?.parentElement.remove();
  window.Worker = class { postMessage() {} };
}
