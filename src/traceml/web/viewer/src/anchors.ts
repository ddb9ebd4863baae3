/** Links to a part of the page, where the browser would not follow them. */

/**
 * In a notebook the page is the text of a frame (`srcdoc`) and has no address of its own: a link to
 * `#part` there means the notebook's page, which would be loaded into the frame.
 */
export function startAnchors(): void {
  if (window.location.protocol === "about:") document.addEventListener("click", follow);
}

function follow(event: MouseEvent): void {
  const link = event.target instanceof Element ? event.target.closest('a[href^="#"]') : null;
  const part = link && document.getElementById(link.getAttribute("href")!.slice(1));
  if (!part) return;
  event.preventDefault();
  part.focus({ preventScroll: true });
  part.scrollIntoView();
}
