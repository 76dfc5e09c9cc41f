"use strict";
// What the scripts of the pages share. Text from data only ever becomes textContent.

const filled = (made, attributes, children) => {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const element = (name, attributes = {}, ...children) =>
  filled(document.createElement(name), attributes, children);

const percent = (p) => (p === null ? "" : `${Math.round(100 * p)}%`);

// The values that the server wrote into the page.
const valuesOf = (root) => JSON.parse(root.querySelector("[data-values]").textContent);

// Ask again and again while the page is visible; a server that has ended is said once.
const poll = (root, address, seconds, receive) => {
  if (!root.hasAttribute("data-live")) return;
  const ask = async () => {
    let reply = null;
    try {
      if (!document.hidden) reply = await fetch(address());
    } catch (error) {
      root.prepend(element("p", { role: "alert" }, "The server has ended: this page is not updated."));
      return;
    }
    setTimeout(ask, 1000 * seconds);
    if (reply?.ok) receive(await reply.json());
  };
  setTimeout(ask, 1000 * seconds);
};
