/** A few columns with many rows: names and heads stay in sight, rows can be searched. */

import { useState } from "preact/hooks";
import { useLink } from "../served";
import type { WideGrid, GridCell, GridColumn, GridRow } from "../schema";
import { still } from "../still";
import { usePrinting } from "../theme";
import { ToneIcon } from "./tone";

const FEW_ROWS = 12; // more have to be looked for
const PAPER_COLUMNS = 6; // as many as paper has room for

export const GridView = still(function GridView({
  grid,
  isNamed,
}: {
  grid: WideGrid;
  /** What it is in has the same title, which is not said twice. */
  isNamed: boolean;
}) {
  const [wanted, setWanted] = useState("");
  const differing = grid.rows.filter((row) => row.differs);
  const [isAll, setAll] = useState(false);
  const isPrinting = usePrinting();
  const pool = isAll ? grid.rows : differing;
  const rows = pool.filter(named(wanted));
  const hasSame = differing.length < grid.rows.length;
  return (
    <div class="table">
      <h3 id={`grid-${grid.id}`} hidden={isNamed}>
        {grid.title}
      </h3>
      {(hasSame || pool.length > FEW_ROWS) && (
        <div class="curve-tools" role="group" aria-label={`Rows of ${grid.title}`}>
          {hasSame && (
            <label>
              <input
                type="checkbox"
                checked={!isAll}
                onChange={(event) => setAll(!event.currentTarget.checked)}
              />
              {`Only differences (${differing.length} of ${grid.rows.length} rows)`}
            </label>
          )}
          {pool.length > FEW_ROWS && (
            <input
              type="search"
              value={wanted}
              placeholder={`Search ${pool.length} rows`}
              aria-label={`Search the rows of ${grid.title}`}
              onInput={(event) => setWanted(event.currentTarget.value)}
            />
          )}
        </div>
      )}
      {rows.length === 0 ? (
        <p class="note">
          {wanted !== "" ? `No row matches “${wanted}”.` : "All of them are the same."}
        </p>
      ) : (
        chunks(grid.columns.length, isPrinting ? PAPER_COLUMNS : grid.columns.length).map(
          (places) => <Rows key={places[0]} grid={grid} rows={rows} places={places} />,
        )
      )}
      {grid.note && <p class="caption">{grid.note}</p>}
    </div>
  );
});

interface RowsProperties {
  grid: WideGrid;
  rows: readonly GridRow[];
  /** The columns that are shown. */
  places: readonly number[];
}

function Rows({ grid, rows, places }: RowsProperties) {
  return (
    <div class="scroll grid-scroll" tabIndex={0} role="region" aria-label={`${grid.title}, table`}>
      <table class="grid" aria-labelledby={`grid-${grid.id}`}>
        <thead>
          <tr>
            <td />
            {places.map((place) => (
              <th key={place} scope="col">
                <Column column={grid.columns[place]!} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              <th scope="row">
                <span class="grid-name" title={row.name}>
                  {row.name}
                </span>
              </th>
              {places.map((place) => (
                <Cell key={place} cell={row.cells[place]} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Column({ column }: { column: GridColumn }) {
  const href = useLink()(column.link);
  return (
    <>
      <span class="grid-label">{column.label}</span>{" "}
      <span class="grid-title" title={column.title}>
        {href === null ? column.title : <a href={href}>{column.title}</a>}
      </span>
    </>
  );
}

function Cell({ cell }: { cell: GridCell | undefined }) {
  if (cell === undefined) return <td />;
  return (
    <td class={cell.tone ? `tone-${cell.tone}` : undefined}>
      {cell.tone && cell.tone !== "muted" && <ToneIcon tone={cell.tone} />}
      {cell.text}
      {cell.note && <small>{cell.note}</small>}
    </td>
  );
}

/** Rows whose names have all of the words. */
function named(text: string): (row: GridRow) => boolean {
  const words = text.toLowerCase().split(/\s+/);
  return ({ name }) => words.every((word) => name.toLowerCase().includes(word));
}

/** The numbers from 0 in even groups, none with more than so many. */
function chunks(count: number, most: number): number[][] {
  const size = Math.ceil(count / Math.ceil(count / most));
  const found: number[][] = [];
  for (let first = 0; first < count; first += size) {
    const length = Math.min(size, count - first);
    found.push(Array.from({ length }, (_, place) => first + place));
  }
  return found;
}
