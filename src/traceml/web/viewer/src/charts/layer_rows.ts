/** Which rows of a tree of layers are in sight, and in which order. */

import type { LayerColumn, LayerTreeRow, LayerRows } from "../schema";

export interface Sorting {
  /** A column; `null` for the order in the model. */
  id: string | null;
  isAscending: boolean;
}

export interface Shown {
  place: number;
  row: LayerTreeRow;
  depth: number;
  hasBelow: boolean;
  isOpen: boolean;
}

export interface Wanted {
  isTree: boolean;
  words: string;
  sorting: Sorting;
  open: ReadonlySet<string>;
}

const FEW_ROWS = 24; // so many are open when nobody has chosen yet

/** The places of the rows below each row; those of the outermost ones below -1. */
export class Below {
  private readonly places = new Map<number, number[]>();

  constructor(rows: readonly { parent: number }[]) {
    rows.forEach(({ parent }, place) => {
      const found = this.places.get(parent);
      if (found === undefined) this.places.set(parent, [place]);
      else found.push(place);
    });
  }

  of(place: number): readonly number[] {
    return this.places.get(place) ?? [];
  }
}

/** Opens level after level, as long as few rows are in sight. */
export function firstOpen(rows: readonly LayerTreeRow[], below: Below): ReadonlySet<string> {
  const open = new Set<string>();
  let level = below.of(-1);
  let count = level.length;
  while (level.length > 0) {
    const next = level.flatMap((place) => below.of(place));
    count += next.length;
    if (count > FEW_ROWS && open.size > 0) break;
    for (const place of level) open.add(rows[place]!.name);
    level = next;
  }
  return open;
}

/** In a tree a column counts what is below a row too, in a list it does not. */
export function valuesOf(column: LayerColumn, isTree: boolean): readonly (number | null)[] {
  return isTree || column.own === null ? column.whole : column.own;
}

export function columnOf(data: LayerRows, id: string | null): LayerColumn | undefined {
  return data.columns.find((column) => column.id === id);
}

export function shownRows(data: LayerRows, below: Below, wanted: Wanted): Shown[] {
  const found = matching(data.rows, wanted.words);
  return wanted.isTree
    ? treeRows(data, below, wanted, found)
    : sorted(data, found.own, wanted).map((place) => ({
        place,
        row: data.rows[place]!,
        depth: 0,
        hasBelow: false,
        isOpen: false,
      }));
}

/** Rows with all of the words in their name or class, and everything above those. */
function matching(
  rows: readonly LayerTreeRow[],
  text: string,
): { own: number[]; above: ReadonlySet<number> | null } {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const places = rows.map((_, place) => place);
  if (words.length === 0) return { own: places, above: null };
  const own = places.filter((place) => {
    const { name, kind } = rows[place]!;
    const said = `${name} ${kind}`.toLowerCase();
    return words.every((word) => said.includes(word));
  });
  const above = new Set<number>();
  for (let place of own) {
    while (place >= 0 && !above.has(place)) {
      above.add(place);
      place = rows[place]!.parent;
    }
  }
  return { own, above };
}

function treeRows(
  data: LayerRows,
  below: Below,
  wanted: Wanted,
  found: { above: ReadonlySet<number> | null },
): Shown[] {
  const shown: Shown[] = [];
  const inSight = (place: number): boolean => found.above === null || found.above.has(place);
  // Names come from scripts and may be nested deeper than calls can be: no recursion.
  const waiting = [{ places: sorted(data, below.of(-1), wanted).filter(inSight), next: 0 }];
  while (waiting.length > 0) {
    const level = waiting[waiting.length - 1]!;
    const place = level.places[level.next++];
    if (place === undefined) {
      waiting.pop();
      continue;
    }
    const row = data.rows[place]!;
    const children = below.of(place).filter(inSight);
    const isOpen = children.length > 0 && (found.above !== null || wanted.open.has(row.name));
    shown.push({ place, row, depth: waiting.length - 1, hasBelow: children.length > 0, isOpen });
    if (isOpen) waiting.push({ places: sorted(data, children, wanted), next: 0 });
  }
  return shown;
}

function sorted(data: LayerRows, places: readonly number[], wanted: Wanted): number[] {
  const column = columnOf(data, wanted.sorting.id);
  if (column === undefined) return [...places];
  const values = valuesOf(column, wanted.isTree);
  const sign = wanted.sorting.isAscending ? 1 : -1;
  return [...places].sort((one, other) => {
    const [a, b] = [values[one] ?? null, values[other] ?? null];
    if (a === null || b === null) return (a === null ? 1 : 0) - (b === null ? 1 : 0);
    return sign * (a - b) || one - other;
  });
}

const formats = new Map<number, Intl.NumberFormat>();

/** A value with as many decimals as all of its column; empty where it was not measured. */
export function cellText(value: number | null | undefined, decimals: number): string {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  let format = formats.get(decimals);
  if (format === undefined) {
    format = new Intl.NumberFormat("en-US", {
      minimumFractionDigits: decimals,
      maximumFractionDigits: decimals,
    });
    formats.set(decimals, format);
  }
  return format.format(value);
}

/** "12.3 ms". */
export function withUnit(column: LayerColumn, value: number | null | undefined): string {
  const text = cellText(value, column.decimals);
  if (text === "" || column.unit === "") return text;
  return column.unit === "%" ? `${text}%` : `${text} ${column.unit}`;
}
