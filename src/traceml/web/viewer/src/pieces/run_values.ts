/** The value of a run in a column, in words. */

import { localTime, written } from "../numbers";
import type { ExploredColumn } from "../schema";

export function wordsOf(column: ExploredColumn, value: number | null | undefined): string {
  if (value === null || value === undefined) return "no value";
  switch (column.kind) {
    case "category":
      return column.categories[value]?.label ?? "no value";
    case "moment":
      return localTime(value, "");
    case "number":
      return written(Number(value.toPrecision(4)), column.unit);
  }
}
