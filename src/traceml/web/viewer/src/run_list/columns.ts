/** How wide the columns of the list are, by their kind. */

import type { ColumnKind, ListColumn } from "../schema";

export const PICK_PX = 44;
const WIDTHS_PX: Record<ColumnKind, number> = {
  name: 250,
  status: 96,
  verdict: 230,
  number: 100,
  text: 112,
  moment: 148,
  tags: 180,
};
const GROUP_MEAN_PX = 190;

const GROUP_NAME_PX = 220;

export function widthOf(column: ListColumn, place: number, isGrouped: boolean): number {
  if (isGrouped && place === 0) return GROUP_NAME_PX;
  if (isGrouped && column.label.includes("mean ±")) return GROUP_MEAN_PX;
  return WIDTHS_PX[column.kind];
}

export function tableWidth(columns: readonly ListColumn[], isGrouped: boolean): number {
  const widths = columns.map((column, place) => widthOf(column, place, isGrouped));
  return widths.reduce((sum, width) => sum + width, PICK_PX);
}
