// The groups of the side bar fold; those without the page that is shown begin folded, and at
// home all but the first.
document.addEventListener("DOMContentLoaded", () => {
  const captions = [...document.querySelectorAll(".sidebar-tree .caption")];
  const isHome = !document.querySelector(".sidebar-tree .current");
  for (const caption of captions) {
    const list = caption.nextElementSibling;
    if (!list) continue;
    const button = document.createElement("button");
    button.className = "fold";
    button.textContent = caption.textContent;
    const fold = (folded) => {
      list.hidden = folded;
      button.setAttribute("aria-expanded", String(!folded));
    };
    caption.replaceChildren(button);
    button.addEventListener("click", () => fold(!list.hidden));
    fold(isHome ? caption !== captions[0] : !list.querySelector(".current"));
  }
});
