/** Where this page stands: on a server, or in a file with its data beside it. */

import type { Page } from "./schema";

/** What the shell of the page may hold in `<script id="page">`. */
interface Enclosed {
  page?: Page | null;
  live?: boolean;
  base?: string;
}

export interface Place {
  /** The data that came with the page. */
  page: Page | null;
  /** Whether a server stands behind it. */
  isServed: boolean;
  /** What stands before every address of the server. */
  base: string;
}

export function findPlace(): Place {
  const text = document.getElementById("page")?.textContent?.trim();
  const enclosed: Enclosed = text ? (JSON.parse(text) as Enclosed) : {};
  const page = enclosed.page ?? null;
  return { page, isServed: enclosed.live ?? page === null, base: enclosed.base ?? "" };
}

/** The page's own address as the server knows it: "/", "/runs/NAME" or "/compare". */
export function pathOf(place: Place): string {
  const path = window.location.pathname;
  return path.startsWith(place.base) ? path.slice(place.base.length) || "/" : path;
}

export function runAddress(base: string, name: string): string {
  return `${base}/runs/${encodeURIComponent(name)}`;
}

/** Compares two runs, or two groups of them. */
export function comparisonAddress(
  base: string,
  a: readonly string[],
  b: readonly string[],
): string {
  const side = (letter: string, names: readonly string[]): string[] =>
    names.map((name) => `${letter}=${encodeURIComponent(name)}`);
  return `${base}/compare?${[...side("a", a), ...side("b", b)].join("&")}`;
}
