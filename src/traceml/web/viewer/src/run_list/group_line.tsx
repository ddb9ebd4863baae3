/** Runs that have something in common, as one row of the list. */

import { localTime } from "../numbers";
import type { GroupRow, ListColumn } from "../schema";
import { still } from "../still";

interface Properties {
  row: GroupRow;
  index: number;
  columns: readonly ListColumn[];
  isPhone: boolean;
  isSelected: boolean;
  onOpen: (row: GroupRow) => void;
  onSelect: (row: GroupRow) => void;
}

export const GroupLine = still(function GroupLine(properties: Properties) {
  const { row, index, columns, isPhone, isSelected, onOpen, onSelect } = properties;
  const words = wordsOf(row, columns);
  return (
    <tr
      class={`run-line${isSelected ? " is-selected" : ""}`}
      aria-rowindex={index + 2}
      data-index={index}
    >
      <td class="pick">
        <label>
          <input
            type="checkbox"
            checked={isSelected}
            aria-label={`Select the ${row.count} runs of ${words}`}
            onChange={() => onSelect(row)}
          />
        </label>
      </td>
      {isPhone ? (
        <th scope="row" class="phone-cell">
          <span class="phone-first">
            <OpenGroup row={row} onOpen={onOpen} words={words} />
          </span>
          <span class="phone-second">
            {columns.map((column, place) =>
              place < inCommon(columns) ? null : (
                <span key={column.key}>
                  <span class="phone-label">{column.label}</span> {shown(row.cells[place])}
                </span>
              ),
            )}
          </span>
        </th>
      ) : (
        columns.map((column, place) => {
          const value = shown(row.cells[place]);
          if (place > 0) {
            return (
              <td key={column.key} class={`kind-${column.kind}`} title={value}>
                {value}
              </td>
            );
          }
          return (
            <th key={column.key} scope="row" class="kind-name">
              <OpenGroup row={row} onOpen={onOpen} words={value} />
            </th>
          );
        })
      )}
    </tr>
  );
});

function OpenGroup({ row, onOpen, words }: Pick<Properties, "row" | "onOpen"> & { words: string }) {
  return (
    <button
      type="button"
      class="quiet open-group"
      title={`Show its runs: ${row.filter}`}
      onClick={() => onOpen(row)}
    >
      <span aria-hidden="true">▸</span> {words}
    </button>
  );
}

function shown(value: string | number | null | undefined): string {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "number" ? localTime(value, "n/a") : value;
}

/** What the runs of a group have in common: the cells before their number. */
function wordsOf(row: GroupRow, columns: readonly ListColumn[]): string {
  return row.cells.slice(0, inCommon(columns)).map(shown).join(", ");
}

function inCommon(columns: readonly ListColumn[]): number {
  return Math.max(1, columns.findIndex((column) => column.key === "runs"));
}
