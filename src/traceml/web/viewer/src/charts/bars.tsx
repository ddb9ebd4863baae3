/** Bars, waterfalls and trees as rows of plain elements: they scale and print by themselves. */

import { written } from "../numbers";
import type { Bars, Branch, Change, Series, Tree, Waterfall } from "../schema";
import { colourVariable } from "../theme";
import { Key } from "./legend";

/** A piece of a row, in the figure's own numbers. */
interface Piece {
  begin: number;
  end: number;
  colour: string;
  title: string;
}

interface BarRow {
  name: string;
  text: string;
  pieces: readonly Piece[];
  depth?: number;
  isStrong?: boolean;
}

function Rows({ rows, low, high }: { rows: readonly BarRow[]; low: number; high: number }) {
  const width = high - low || 1;
  const percent = (value: number): string => `${(100 * value) / width}%`;
  return (
    <div class="bars">
      {rows.map((row, index) => (
        <div key={index} class={`bar-row${row.isStrong ? " strong" : ""}`}>
          <span
            class="bar-name"
            style={{ paddingLeft: `${(row.depth ?? 0) * 12}px` }}
            title={row.name}
          >
            {row.name}
          </span>
          <span class="bar-track">
            {low < 0 && <span class="bar-zero" style={{ left: percent(-low) }} />}
            {row.pieces.map((piece, place) => (
              <span
                key={place}
                class="bar-piece"
                title={piece.title}
                style={{
                  left: percent(Math.min(piece.begin, piece.end) - low),
                  width: percent(Math.abs(piece.end - piece.begin)),
                  background: colourVariable(piece.colour),
                }}
              />
            ))}
          </span>
          <span class="bar-text">{row.text}</span>
        </div>
      ))}
    </div>
  );
}

/** From the lowest to the highest end of any piece; bars stand on zero. */
function reach(rows: readonly BarRow[]): { low: number; high: number } {
  const ends = rows.flatMap((row) => row.pieces.flatMap((piece) => [piece.begin, piece.end]));
  return { low: Math.min(0, ...ends), high: Math.max(0, ...ends) };
}

export function BarsView({ figure }: { figure: Bars }) {
  const rows = figure.categories.map((name, index) => stackOf(name, index, figure));
  const { low, high } = reach(rows);
  return (
    <>
      <Key series={figure.series} />
      <Rows rows={rows} low={figure.x.low ?? low} high={figure.x.high ?? high} />
    </>
  );
}

function stackOf(name: string, index: number, figure: Bars): BarRow {
  const { unit } = figure.x;
  let [above, below, sum] = [0, 0, 0];
  const pieces: Piece[] = [];
  let isMeasured = false;
  for (const series of figure.series) {
    const value = series.values[index] ?? null;
    if (value === null) continue;
    isMeasured = true;
    sum += value;
    const begin = value < 0 ? below : above;
    if (value < 0) below += value;
    else above += value;
    pieces.push({
      begin,
      end: begin + value,
      colour: series.colour,
      title: told(series, value, unit),
    });
  }
  const text = isMeasured ? written(Number(sum.toPrecision(3)), unit) : "n/a";
  return { name, text, pieces };
}

function told(series: Series, value: number, unit: string): string {
  return `${series.name}: ${written(value, unit)}`;
}

export function WaterfallView({ figure }: { figure: Waterfall }) {
  let level = 0;
  const rows = figure.changes.map((change) => {
    const begin = change.is_total ? 0 : level;
    level = begin + change.value;
    return fallOf(change, begin, level, figure.y.unit);
  });
  const { low, high } = reach(rows);
  return <Rows rows={rows} low={figure.y.low ?? low} high={figure.y.high ?? high} />;
}

function fallOf(change: Change, begin: number, end: number, unit: string): BarRow {
  const title = `${change.name}: ${written(change.value, unit)}`;
  return {
    name: change.name,
    text: change.text,
    pieces: [{ begin, end, colour: change.colour, title }],
    isStrong: change.is_total,
  };
}

export function TreeView({ figure }: { figure: Tree }) {
  return <Rows rows={branchRows(figure.root, 0, 0)} low={0} high={1} />;
}

/** Every part under its whole, its bar where it lies within the root. */
function branchRows(branch: Branch, begin: number, depth: number): BarRow[] {
  const row: BarRow = {
    name: branch.name,
    text: branch.text,
    depth,
    isStrong: depth === 0,
    pieces: [
      {
        begin,
        end: begin + branch.share,
        colour: branch.colour,
        title: `${branch.name}: ${branch.text}`,
      },
    ],
  };
  const rows = [row];
  let at = begin;
  for (const part of branch.parts) {
    rows.push(...branchRows(part, at, depth + 1));
    at += part.share;
  }
  return rows;
}
