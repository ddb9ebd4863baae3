/** A card of a page: a diagnosis, its numbers, its pictures, its tables. */

import { CurveTools } from "../charts/curve_tools";
import { FigureView } from "../charts/figure";
import { still } from "../still";
import type { Figure, Part, Tile } from "../schema";
import { LensSelect } from "./lens";
import { TableView } from "./table";
import { Badge, ToneIcon } from "./tone";

export const PartView = still(function PartView({ part }: { part: Part }) {
  if (isEmpty(part)) return null;
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
      {part.figures.some((figure) => figure.type === "lines" && figure.is_curve) && <CurveTools />}
      {part.figures.length > 0 && (
        <div class="figures">
          {part.figures.map((figure, index) => (
            <div key={figure.id} class={widthOf(part.figures, index)}>
              <FigureView figure={figure} />
            </div>
          ))}
        </div>
      )}
      {part.tables.length > 0 && (
        <div class="tables">
          {part.tables.map((table) => (
            <div key={table.id} class={table.columns.length > 3 ? "full" : "half"}>
              <TableView table={table} isNamed={table.title === part.title} />
            </div>
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

/** A card without anything in it is never shown. */
export function isEmpty({ note, finding, tiles, figures, tables, printed }: Part): boolean {
  const parts = tiles.length + figures.length + tables.length + printed.length;
  return !note && !finding && parts === 0;
}

/** Small figures go side by side, two by two; what can be zoomed has the whole width, but for curves of learning. */
function widthOf(figures: readonly Figure[], index: number): "full" | "half" {
  if (!isNarrow(figures[index])) return "full";
  let first = index;
  while (isNarrow(figures[first - 1])) first--;
  const isAlone = (index - first) % 2 === 0 && !isNarrow(figures[index + 1]);
  return isAlone ? "full" : "half";
}

function isNarrow(figure: Figure | undefined): boolean {
  if (figure === undefined || figure.type === "heatmap") return false;
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
