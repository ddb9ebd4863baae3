/** Cards in columns of about even height; where there is room for but one, in their own order. */

import type { ComponentChild } from "preact";

interface Properties<T> {
  items: readonly T[];
  count: number;
  /** About how tall a card is, in whatever unit. */
  height: (item: T) => number;
  keyOf: (item: T) => string;
  children: (item: T) => ComponentChild;
}

export function Columns<T>({ items, count, height, keyOf, children }: Properties<T>) {
  const columns = packed(items, Math.min(count, items.length), height).map(
    (column) => column.items,
  );
  return (
    <div class="columns" style={{ "--columns": columns.length }}>
      {columns.map((column, side) => (
        <div key={side} class="column">
          {column.map((item) => (
            <div key={keyOf(item)} class="cell" style={{ order: items.indexOf(item) }}>
              {children(item)}
            </div>
          ))}
        </div>
      ))}
    </div>
  );
}

export interface Column<T> {
  items: T[];
  height: number;
}

/** Each goes where there is most room left. */
export function packed<T>(
  items: readonly T[],
  count: number,
  height: (item: T) => number,
): Column<T>[] {
  const columns = Array.from({ length: count }, (): Column<T> => ({ items: [], height: 0 }));
  for (const item of items) {
    const lowest = columns.reduce((least, one) => (one.height < least.height ? one : least));
    lowest.items.push(item);
    lowest.height += height(item);
  }
  return columns;
}
