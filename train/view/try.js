"use strict";
// The forms: text to the server, its answer as elements.

const send = async (address, values) => {
  const reply = await fetch(address, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values),
  });
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error);
  return found;
};

const bar = (p) => element("meter", { min: 0, max: 1, value: p }, percent(p));
const exact = (p) => `${(100 * p).toFixed(1)}%`;

const tableOf = (caption, rows) => {
  const body = element("tbody", {}, ...rows.map(([name, p]) => element("tr", {},
    element("th", { scope: "row" }, name), element("td", {}, bar(p)), element("td", {}, exact(p)))));
  return element("table", { class: "probabilities" }, element("caption", {}, caption), body);
};

const showFilled = (found) => [
  element("p", { class: "filled" }, found.text),
  element("div", { class: "tables" }, ...found.guesses.map((guesses, i) =>
    tableOf(`Mask ${i + 1}`, guesses.map((guess) => [guess.token, guess.probability])))),
];

// A word that speaks for the predicted class is marked with +, one against it with −.
const wordOf = ({ word, effect }, most) => {
  if (effect === null || Math.abs(effect) < 0.2 * most) return word;
  const sign = effect > 0 ? "+" : "−";
  const points = Math.abs(100 * effect).toFixed(effect > -0.01 && effect < 0.01 ? 1 : 0);
  return element("mark", { class: effect > 0 ? "for" : "against" }, word, " ", element("small", {}, `${sign}${points}`));
};

const showClasses = (found) => {
  const most = Math.max(0.005, ...found.words.map((word) => Math.abs(word.effect ?? 0)));
  const text = element("p", { class: "effects" });
  found.words.forEach((word, i) => {
    if (i && word.part !== found.words[i - 1].part) text.append("\n"); // the second text
    text.append(word.space, wordOf(word, most));
  });
  const [best] = found.classes;
  return [
    tableOf("Classes", found.classes.map(({ name, probability }) => [name, probability])),
    element("p", {}, `Words that mattered: by how many points the probability of “${best.name}” falls (+) or rises (−) without the word.`),
    text,
  ];
};

const startForm = (root, address, show) => {
  const form = root.querySelector("form"), result = root.querySelector("[data-result]");
  let answered = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    if ("run" in values) values.run = Number(values.run);
    const button = form.querySelector("button");
    button.disabled = true;
    result.textContent = answered ? "Working …" : "Loading the model …";
    try {
      result.replaceChildren(...show(await send(address, values)));
      answered = true;
    } catch (error) {
      result.replaceChildren(element("p", { role: "alert" }, error.message));
    }
    button.disabled = false;
  });
};

document.querySelectorAll("[data-fill]").forEach((root) => startForm(root, "/fill", showFilled));
document.querySelectorAll("[data-classify]").forEach((root) => startForm(root, "/classify", showClasses));
