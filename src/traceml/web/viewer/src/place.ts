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

/** Where the server has this page as one file to keep; `null` where there is no such file. */
export function reportOf(place: Place, page: Page | null): string | null {
  if (!place.isServed || page === null) return null;
  const path = pathOf(place);
  if (page.type === "run") return `${place.base}/report?run=${path.slice("/runs/".length)}`;
  return `${place.base}/report?${comparedQuery()}`;
}

/** Which runs this page compares, as a query; with more keys and values where they are given. */
export function comparedQuery(more: readonly (readonly [string, string])[] = []): string {
  const search = new URLSearchParams(window.location.search);
  const kept = ["run", "a", "b"].flatMap((key) =>
    search.getAll(key).map((value): [string, string] => [key, value]),
  );
  return new URLSearchParams([...kept, ...more.map(([key, value]) => [key, value])]).toString();
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
