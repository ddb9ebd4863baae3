/** A figure with its title, its caption and its numbers. */

import { still } from "../still";
import { useState } from "preact/hooks";
import { written } from "../numbers";
import type { Figure, StepAxis } from "../schema";
import { canZoom } from "./axes";
import { BarsView, TreeView, WaterfallView } from "./bars";
import { FlameGraphView } from "./flame_graph";
import { HeatmapView } from "./heatmap";
import { LayersView } from "./layers";
import { LinesView } from "./lines";
import { PointsView } from "./points";
import { RankGridView } from "./rank_grid";
import { numbersOf } from "./table";
import { useStepWindow } from "./zoom";

export const FigureView = still(function FigureView({ figure }: { figure: Figure }) {
  const title = `figure-${figure.id}`;
  return (
    <figure class={`figure figure-${figure.type}`} aria-labelledby={title}>
      <figcaption>
        <h3 id={title}>{figure.title}</h3>
        {(figure.type === "lines" || figure.type === "heatmap") && canZoom(figure) && (
          <ZoomState axis={figure.axis} />
        )}
      </figcaption>
      <Drawing figure={figure} />
      {figure.caption && <p class="caption">{figure.caption}</p>}
      <DataTable figure={figure} />
    </figure>
  );
});

function Drawing({ figure }: { figure: Figure }) {
  if (isBlank(figure)) return <p class="caption">Nothing has been measured for this yet.</p>;
  switch (figure.type) {
    case "lines":
      return <LinesView figure={figure} />;
    case "heatmap":
      return <HeatmapView figure={figure} />;
    case "rank_grid":
      return <RankGridView figure={figure} />;
    case "bars":
      return <BarsView figure={figure} />;
    case "waterfall":
      return <WaterfallView figure={figure} />;
    case "tree":
      return <TreeView figure={figure} />;
    case "layers":
      return <LayersView figure={figure} />;
    case "flame":
      return <FlameGraphView figure={figure} />;
    case "points":
      return <PointsView figure={figure} />;
  }
}

/** Axes without a single value say nothing. */
function isBlank(figure: Figure): boolean {
  const isEmpty = (values: readonly (number | null)[]): boolean =>
    values.every((value) => value === null);
  switch (figure.type) {
    case "lines":
      if (figure.marks.length > 0) return false;
      return figure.series.every((series) => isEmpty(series.values));
    case "bars":
      return figure.series.every((series) => isEmpty(series.values));
    case "heatmap":
    case "rank_grid":
      return figure.values.every(isEmpty);
    default:
      return false;
  }
}

function ZoomState({ axis }: { axis: StepAxis }) {
  const steps = useStepWindow(axis);
  if (steps.range === null) {
    return <span class="hint how">Drag the slider, or hold Ctrl and turn the wheel, to zoom</span>;
  }
  const [first, last] = steps.range.map((step) => written(Math.round(step)));
  return (
    <span class="hint" role="status">
      {steps.error ?? `Steps ${first} – ${last}${steps.isLoading ? ", reading finer values" : ""}`}
      <button type="button" class="quiet" onClick={() => steps.look(null)}>
        Show all
      </button>
    </span>
  );
}

function DataTable({ figure }: { figure: Figure }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="figure-data" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Data as table</summary>
      {isOpen && <NumbersTable figure={figure} />}
    </details>
  );
}

function NumbersTable({ figure }: { figure: Figure }) {
  const { columns, rows, note } = numbersOf(figure);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${figure.title}: data`}>
      {note && <p class="caption">{note}</p>}
      <table>
        <thead>
          <tr>
            {columns.map((column, index) =>
              column === "" ? (
                <td key={index} />
              ) : (
                <th key={index} scope="col">
                  {column}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, place) =>
                place === 0 ? (
                  <th key={place} scope="row">
                    {cell}
                  </th>
                ) : (
                  <td key={place}>{cell}</td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
