// A button to copy each command.
for (const code of document.querySelectorAll(".command code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${code.textContent.slice(0, 80)}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // not allowed: then it can be copied by hand
      getSelection().selectAllChildren(code);
    }
  });
  code.after(button);
}
// A link to something inside closed lists opens them.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let outer = target?.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
