/** The keyboard: short ways to what the mouse can do as well. */

import { useEffect } from "preact/hooks";
import { toggleTheme } from "./theme";

const FIELDS = "input:not([type=checkbox]), textarea, select, dialog[open]";
const TOP_PX = 60; // the height of the strip on top, as in styles.css: scroll-padding-top
const PAIR_MS = 1200; // how long `g` waits for what comes behind it

export function useKeys(home: string | null, onHelp: () => void): void {
  useEffect(() => {
    let pressedG = 0;
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isElsewhere(event.target)) return;
      const follows = Date.now() - pressedG < PAIR_MS;
      pressedG = event.key === "g" ? Date.now() : 0;
      if (follows && event.key === "r") {
        if (home !== null) window.location.assign(home);
      } else if (act(event.key, onHelp)) event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [home, onHelp]);
}

function act(key: string, onHelp: () => void): boolean {
  switch (key) {
    case "?":
      onHelp();
      return true;
    case "t":
      toggleTheme();
      return true;
    case "j":
      return walk(1);
    case "k":
      return walk(-1);
    case "/":
      return focusFilter();
    default:
      return false;
  }
}

/** In a field, where keys write, or in the window of the keys. */
function isElsewhere(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest(FIELDS) !== null;
}

function focusFilter(): boolean {
  const filter = document.querySelector<HTMLElement>("[data-filter]");
  filter?.focus();
  return filter !== null;
}

/** To the next part, or the one before, as they lie on the page. */
function walk(by: 1 | -1): boolean {
  const parts = [...document.querySelectorAll<HTMLElement>("[data-part]")];
  parts.sort((one, other) => topOf(one) - topOf(other) || leftOf(one) - leftOf(other));
  const here = parts.findIndex((part) => part.contains(document.activeElement));
  const next = here === -1 ? inSight(parts, by) : here + by;
  const part = parts[Math.max(0, Math.min(parts.length - 1, next))];
  part?.focus({ preventScroll: true });
  part?.scrollIntoView({ block: "start" });
  return part !== undefined;
}

/** Where nobody has been yet: on from the part that is at the top of the window. */
function inSight(parts: readonly HTMLElement[], by: 1 | -1): number {
  const above = parts.filter((part) => topOf(part) < TOP_PX).length;
  return by === 1 ? above : above - 1;
}

function topOf(part: HTMLElement): number {
  return Math.round(part.getBoundingClientRect().top);
}

function leftOf(part: HTMLElement): number {
  return part.getBoundingClientRect().left;
}
