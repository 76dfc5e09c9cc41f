"use strict";
// The slider over evaluations: rewrites the guesses of the chips that the server drew.

const startLearning = (root) => {
  const values = valuesOf(root);
  const evaluations = values.evaluations;
  const last = () => evaluations.length - 1;
  poll(
    root,
    () => `/learning.json?run=${values.run}&after=${last() < 0 ? -1 : evaluations[last()].step}`,
    3,
    (news) => {
      if (!news.evaluations.length) return;
      if (last() < 0) return location.reload(); // the first evaluation: the server draws the rows
      const follows = Number(slider.value) === last();
      evaluations.push(...news.evaluations);
      slider.max = last();
      if (follows) show(last());
    },
  );
  if (!evaluations.length) return;

  const find = (name) => root.querySelector(`[data-${name}]`);
  const slider = find("slider");
  const rows = [...root.querySelectorAll("[data-row]")];
  const chips = rows.map((row) => [...row.querySelectorAll(".right, .wrong")]);
  const names = (label) => (label ? `B is ${values.negative}` : "B follows A");

  const showPair = (row, label, probability) => {
    if (probability === null) return false;
    const guess = probability >= 0.5 ? 1 : 0;
    const right = guess === label;
    const sure = percent(guess ? probability : 1 - probability);
    row.querySelector("[data-pair]").textContent =
      ` – the model says ${names(guess)} (${sure}) ${right ? "✓" : "✗"}`;
    return right;
  };

  const showChip = (chip, answer, guess, p, ofAnswer) => {
    const right = guess === answer;
    chip.classList.toggle("right", right);
    chip.classList.toggle("wrong", !right);
    chip.querySelector(".guess").textContent = right
      ? `${percent(p)} ✓`
      : `${percent(ofAnswer)} ✗ ${guess} ${percent(p)}`;
    return right;
  };

  const show = (index) => {
    const now = evaluations[index];
    let masks = 0, masksRight = 0, pairs = 0, pairsRight = 0;
    rows.forEach((row, r) => {
      chips[r].forEach((chip, i) => {
        masks += 1;
        masksRight += showChip(
          chip, values.answers[r][i], now.guesses[r][i], now.probabilities[r][i], now.of_answers[r][i],
        );
      });
      pairs += now.label_1[r] !== null;
      pairsRight += showPair(row, values.labels[r], now.label_1[r]);
    });
    slider.value = index;
    slider.setAttribute("aria-valuetext", `step ${now.step}`);
    find("step").textContent = now.step.toLocaleString("en");
    find("summary").textContent =
      `Step ${now.step.toLocaleString("en")}: ${masksRight} of ${masks} masks right` +
      (pairs ? `, ${pairsRight} of ${pairs} pairs right` : "") + ".";
  };

  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    find("play").textContent = "Play";
  };
  const move = (by) => {
    stop();
    show(Math.min(Math.max(Number(slider.value) + by, 0), last()));
  };
  slider.addEventListener("input", () => move(0));
  find("back").addEventListener("click", () => move(-1));
  find("forward").addEventListener("click", () => move(1));
  find("play").addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) === last()) show(0);
    find("play").textContent = "Stop";
    timer = setInterval(() => {
      if (Number(slider.value) >= last()) return stop();
      show(Number(slider.value) + 1);
    }, 700);
  });
  show(last());
};

document.querySelectorAll("[data-learning]").forEach(startLearning);
