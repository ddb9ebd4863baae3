/** A card of a page: a diagnosis, its numbers, its pictures, its tables. */

import { useState } from "preact/hooks";
import { readChoice, writeChoices } from "../address";
import { CurveTools } from "../charts/curve_tools";
import { FigureView } from "../charts/figure";
import { still } from "../still";
import type { Figure, Part, Table, Tile } from "../schema";
import { CurveChoice, useChosenCurves } from "./curve_choice";
import { DiffView } from "./diff";
import { GridView } from "./grid";
import { LensSelect } from "./lens";
import { Pictures } from "./pictures";
import { TableView } from "./table";
import { Badge, ToneIcon } from "./tone";

export const PartView = still(function PartView({ part }: { part: Part }) {
  const [wanted, setWanted] = useState(() => readChoice("charts") ?? "");
  const chosen = useChosenCurves(part.further_curves);
  if (isEmpty(part)) return null;
  const curves = part.figures.filter(isCurve).length;
  const drawn = curves > FEW_CURVES ? part.figures.filter(named(wanted)) : part.figures;
  const figures = [...chosen.figures, ...drawn];
  const choose = (text: string): void => {
    writeChoices({ charts: text });
    setWanted(text);
  };
  return (
    <section
      id={part.id}
      class="card part"
      aria-labelledby={`title-${part.id}`}
      data-part
      tabIndex={-1}
    >
      <header>
        <h2 id={`title-${part.id}`}>{part.title}</h2>
        {part.finding && <Badge tone={part.finding.severity}>{part.finding.status}</Badge>}
        {part.has_lens && <LensSelect />}
        {part.note && <p class="note">{part.note}</p>}
      </header>
      <Tiles tiles={part.tiles} />
      {(curves > 0 || part.further_curves.length > 0) && (
        <CurveTools>
          <CurveChoice further={part.further_curves} chosen={chosen} />
          {curves > FEW_CURVES && (
            <input
              type="search"
              value={wanted}
              placeholder={`Filter ${curves} charts`}
              aria-label="Filter the charts"
              onInput={(event) => choose(event.currentTarget.value)}
            />
          )}
        </CurveTools>
      )}
      {figures.length > 0 && (
        <div class="figures">
          {figures.map((figure, index) => (
            <div key={figure.id} class={widthOf(figures, index)}>
              <FigureView figure={figure} />
            </div>
          ))}
        </div>
      )}
      {part.figures.length > 0 && figures.length === 0 && (
        <p class="note">No chart matches “{wanted}”.</p>
      )}
      {part.grids.map((grid) => (
        <GridView key={grid.id} grid={grid} isNamed={grid.title === part.title} />
      ))}
      <Pictures pictures={part.pictures} />
      {part.tables.length > 0 && (
        <div class="tables">
          {part.tables.map((table) => (
            <div key={table.id} class={isBroad(table) ? "full" : "half"}>
              <TableView table={table} isNamed={table.title === part.title} />
            </div>
          ))}
        </div>
      )}
      {part.diffs.length > 0 && (
        <div class="diffs">
          {part.diffs.map((diff) => (
            <DiffView key={diff.id} diff={diff} />
          ))}
        </div>
      )}
      {part.printed.length > 0 && (
        <pre class="output" tabIndex={0} aria-label={`${part.title}, as it was printed`}>
          {part.printed.join("\n")}
        </pre>
      )}
    </section>
  );
});

const FEW_CURVES = 6; // more have to be looked for

function isCurve(figure: Figure): boolean {
  return figure.type === "lines" && figure.is_curve;
}

/** Whose titles have all of the words. */
function named(text: string): (figure: Figure) => boolean {
  const words = text.toLowerCase().split(/\s+/);
  return ({ title }) => words.every((word) => title.toLowerCase().includes(word));
}

/** A card without anything in it is never shown. */
export function isEmpty(part: Part): boolean {
  const { tiles, figures, tables, printed, grids, diffs, pictures } = part;
  const pieces = [tiles, figures, tables, printed, grids, diffs, pictures, part.further_curves];
  return !part.note && !part.finding && pieces.every((piece) => piece.length === 0);
}

/** Many columns, or sentences, take a whole line. */
function isBroad({ columns, rows }: Table): boolean {
  return columns.length > 3 || rows.some(({ cells }) => cells.some((cell) => cell.length > 90));
}

/** Small figures and curves of learning go two by two; what else can be zoomed has a whole line. */
function widthOf(figures: readonly Figure[], index: number): "full" | "half" {
  if (!isNarrow(figures[index])) return "full";
  let first = index;
  while (isNarrow(figures[first - 1])) first--;
  const isAlone = (index - first) % 2 === 0 && !isNarrow(figures[index + 1]);
  return isAlone ? "full" : "half";
}

function isNarrow(figure: Figure | undefined): boolean {
  if (figure === undefined || figure.type === "heatmap" || figure.type === "layers") return false;
  return figure.type !== "lines" || figure.is_curve || !figure.zooms;
}

function Tiles({ tiles }: { tiles: readonly Tile[] }) {
  if (tiles.length === 0) return null;
  return (
    <dl class="tiles">
      {tiles.map((tile) => (
        <div key={tile.label} class={`tile${tile.tone ? ` tone-${tile.tone}` : ""}`}>
          <dt>{tile.label}</dt>
          <dd class="value">
            {tile.tone && tile.tone !== "muted" && <ToneIcon tone={tile.tone} />}
            {tile.value}
          </dd>
          {tile.note && <dd class="tile-note">{tile.note}</dd>}
        </div>
      ))}
    </dl>
  );
}
