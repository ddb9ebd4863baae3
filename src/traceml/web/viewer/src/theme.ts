/** Light or dark: what the machine prefers, unless the reader chose; paper is always light. */

import { useLayoutEffect, useState } from "preact/hooks";
import { GROUND, PALETTE } from "./schema";

export type Theme = "light" | "dark";

const COLOURS: ReadonlyMap<string, Record<Theme, string>> = new Map(Object.entries(PALETTE));
const KEY = "traceml-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let chosen = storedChoice();
let printing = false;

function storedChoice(): Theme | null {
  try {
    const stored = window.localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : null;
  } catch {
    return null; // a file or a sandboxed frame has no storage: the machine's preference holds
  }
}

function store(choice: Theme | null): void {
  try {
    if (choice === null) window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, choice);
  } catch {
    // no storage here: the choice lasts as long as the page
  }
}

function preferred(): Theme {
  return dark.matches ? "dark" : "light";
}

export function currentTheme(): Theme {
  return printing ? "light" : (chosen ?? preferred());
}

/** The other one; choosing what the machine prefers means following the machine again. */
export function toggleTheme(): void {
  const other = currentTheme() === "dark" ? "light" : "dark";
  chosen = other === preferred() ? null : other;
  store(chosen);
  announce();
}

export function setPrinting(isPrinting: boolean): void {
  printing = isPrinting;
  document.documentElement.classList.toggle("printing", isPrinting);
  announce();
}

function announce(): void {
  paintRoot();
  for (const listener of listeners) listener();
}

function paintRoot(): void {
  const theme = currentTheme();
  const root = document.documentElement;
  root.dataset["theme"] = theme;
  root.style.setProperty("--surface", GROUND[theme]);
  for (const [name, colour] of COLOURS) {
    root.style.setProperty(`--p-${name}`, colour[theme]);
  }
}

export function startTheme(): void {
  dark.addEventListener("change", announce);
  paintRoot();
}

export function useTheme(): Theme {
  const [theme, setTheme] = useState(currentTheme);
  useLayoutEffect(() => {
    const follow = (): void => setTheme(currentTheme());
    listeners.add(follow);
    follow();
    return () => void listeners.delete(follow);
  }, []);
  return theme;
}

/** Whether the page is being brought to paper. */
export function usePrinting(): boolean {
  const [isPrinting, setState] = useState(printing);
  useLayoutEffect(() => {
    const follow = (): void => setState(printing);
    listeners.add(follow);
    follow();
    return () => void listeners.delete(follow);
  }, []);
  return isPrinting;
}

/** A palette's colour for a canvas; a name that nobody knows is drawn muted. */
export function colourOf(name: string, theme: Theme): string {
  return (COLOURS.get(name) ?? PALETTE.muted)[theme];
}

/** The same for an element, which follows the theme by itself. */
export function colourVariable(name: string): string {
  return `var(--p-${COLOURS.has(name) ? name : "muted"})`;
}
