/** Parts of axes that the reader marked, and the filter that they are. */

import type { ExploredColumn } from "../schema";

/** Of a number: both ends, `null` where one is open. Of a category: the labels. */
export type Brush =
  | { name: string; low: number | null; high: number | null }
  | { name: string; labels: readonly string[] };

export type Brushes = readonly Brush[];

const DIGITS = 4;

/** The ends are rounded once, so that the picture and the filter mean the same runs. */
export function rangeBrush(column: ExploredColumn, low: number, high: number): Brush {
  let [least, most] = [Infinity, -Infinity];
  for (const value of column.values) {
    if (value === null) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  const digits = column.kind === "moment" ? 10 : DIGITS;
  return {
    name: column.name,
    low: low <= least ? null : Number(low.toPrecision(digits)),
    high: high >= most ? null : Number(high.toPrecision(digits)),
  };
}

export function withBrush(brushes: Brushes, name: string, brush: Brush | null): Brushes {
  const others = brushes.filter((one) => one.name !== name);
  return brush === null || isOpen(brush) ? others : [...others, brush];
}

function isOpen(brush: Brush): boolean {
  return "labels" in brush ? brush.labels.length === 0 : brush.low === null && brush.high === null;
}

/** Which runs every brush lets through; `null`: there is no brush. */
export function brushed(
  brushes: Brushes,
  columns: ReadonlyMap<string, ExploredColumn>,
  count: number,
): Uint8Array | null {
  const known = brushes.filter(({ name }) => columns.has(name));
  if (known.length === 0) return null;
  const found = new Uint8Array(count).fill(1);
  for (const brush of known) {
    const column = columns.get(brush.name)!;
    const isIn = testOf(brush, column);
    column.values.forEach((value, run) => {
      if (value === null || !isIn(value)) found[run] = 0;
    });
  }
  return found;
}

function testOf(brush: Brush, column: ExploredColumn): (value: number) => boolean {
  if ("labels" in brush) {
    const labels = new Set(brush.labels);
    const isIn = column.categories.map(({ label }) => labels.has(label));
    return (value) => isIn[value] ?? false;
  }
  const { low, high } = brush;
  return (value) => (low === null || value >= low) && (high === null || value <= high);
}

/** The conditions of the brushes and the page's own filter, in the language of filters. */
export function filterOf(
  filter: string,
  brushes: Brushes,
  columns: ReadonlyMap<string, ExploredColumn>,
): string {
  const conditions = brushes.flatMap((brush) => {
    const column = columns.get(brush.name);
    return column === undefined ? [] : conditionsOf(brush, column);
  });
  const first = filter === "" ? [] : [/\bor\b|\|/i.test(filter) ? `(${filter})` : filter];
  return [...first, ...conditions].join(" and ");
}

function conditionsOf(brush: Brush, column: ExploredColumn): string[] {
  if ("labels" in brush) {
    const labels = new Set(brush.labels);
    const chosen = column.categories.filter(({ label }) => labels.has(label));
    const said = chosen.map(({ condition }) => condition);
    return said.length > 1 ? [`(${said.join(" or ")})`] : said;
  }
  const { low, high } = brush;
  return [
    ...(low === null ? [] : [`${column.name} >= ${numberOf(low, column)}`]),
    ...(high === null ? [] : [`${column.name} <= ${numberOf(high, column)}`]),
  ];
}

function numberOf(value: number, column: ExploredColumn): string {
  if (column.kind !== "moment") return `${value}${column.unit}`;
  const when = new Date(value * 1000);
  return `"${Number.isNaN(when.getTime()) ? "1970-01-01" : when.toISOString()}"`;
}

/** As the page's address keeps it. */
export function writtenBrush(brush: Brush): string {
  return JSON.stringify(
    "labels" in brush ? [brush.name, brush.labels] : [brush.name, brush.low, brush.high],
  );
}

/** `null` for what is no brush: somebody may have cut the address. */
export function readBrush(text: string): Brush | null {
  try {
    const [name, first, last] = JSON.parse(text) as unknown[];
    if (typeof name !== "string") return null;
    if (Array.isArray(first)) return { name, labels: first.map(String) };
    const isEnd = (one: unknown): one is number | null => one === null || typeof one === "number";
    return isEnd(first) && isEnd(last) ? { name, low: first, high: last } : null;
  } catch {
    return null;
  }
}
