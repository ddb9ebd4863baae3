/** A table of ready words; numbers stand to the right so that they can be compared. */

import { useLink } from "../served";
import { still } from "../still";
import type { Table } from "../schema";
import { ToneIcon } from "./tone";

interface Properties {
  table: Table;
  /** What it is in has the same title, which is not said twice. */
  isNamed: boolean;
}

export const TableView = still(function TableView({ table, isNamed }: Properties) {
  const sides = table.columns.map((_, place) => sideOf(table, place));
  return (
    <div class="table">
      <h3 id={`table-${table.id}`} hidden={isNamed}>
        {table.title}
      </h3>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${table.title}, table`}>
        <table aria-labelledby={`table-${table.id}`}>
          <thead>
            <tr>
              {table.columns.map((column, place) =>
                column === "" ? (
                  <td key={place} />
                ) : (
                  <th key={place} scope="col" class={sides[place]}>
                    {column}
                  </th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {table.rows.map((row, index) => (
              <tr key={index} class={row.tone ? `tone-${row.tone}` : undefined}>
                {row.cells.map((cell, place) =>
                  place === 0 ? (
                    <th key={place} scope="row">
                      {row.tone && row.tone !== "muted" && <ToneIcon tone={row.tone} />}
                      <Linked words={cell} link={row.link} />
                    </th>
                  ) : (
                    <td key={place} class={sides[place]}>
                      {cell}
                    </td>
                  ),
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {table.note && <p class="caption">{table.note}</p>}
    </div>
  );
});

function Linked({ words, link }: { words: string; link: string | null }) {
  const href = useLink()(link);
  return href === null ? <>{words}</> : <a href={href}>{words}</a>;
}

const NUMBER = /^([-+−±~≈<>]?\s?\d|n\/a|–|—)/;
const SHORT = 14; // a word of this length is never broken
const LONGEST = 34; // beyond it a cell is a sentence that begins with a number

/** A column of words stands to the left, one of numbers, or mostly so, to the right. */
function sideOf(table: Table, place: number): string {
  const found = wordsOrNumbers(table, place);
  const isShort = table.rows.every(({ cells }) => (cells[place] ?? "").length <= SHORT);
  return found === "words" && place > 0 && isShort ? "words short" : found;
}

function wordsOrNumbers(table: Table, place: number): "numbers" | "words" {
  if (place === 0 || table.columns.length < 4) return "words";
  const cells = table.rows.map((row) => row.cells[place] ?? "").filter((cell) => cell !== "");
  const numbers = cells.filter((cell) => NUMBER.test(cell)).length;
  const isShort = cells.every((cell) => cell.length <= LONGEST);
  return isShort && numbers > 0.6 * cells.length ? "numbers" : "words";
}
