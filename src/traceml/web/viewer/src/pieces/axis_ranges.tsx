/** The parts of axes as fields: for the keyboard, for fingers, and for exact numbers. */

import type { Brush, Brushes } from "./brushes";
import type { ExploredColumn } from "../schema";

const MOST = 40; // categories with a box of their own

interface Properties {
  columns: readonly ExploredColumn[];
  brushes: Brushes;
  onBrush: (name: string, brush: Brush | null) => void;
}

export function AxisRanges({ columns, brushes, onBrush }: Properties) {
  const usable = columns.filter(({ kind }) => kind !== "moment");
  return (
    <details class="figure-data ranges">
      <summary>Ranges as numbers</summary>
      <div class="ranges-fields">
        {usable.map((column) => {
          const brush = brushes.find(({ name }) => name === column.name) ?? null;
          return (
            <fieldset key={column.name}>
              <legend title={column.name}>
                {column.label}
                {column.unit && ` (${column.unit})`}
              </legend>
              {column.kind === "category" ? (
                <Labels column={column} brush={brush} onBrush={onBrush} />
              ) : (
                <Ends column={column} brush={brush} onBrush={onBrush} />
              )}
            </fieldset>
          );
        })}
      </div>
    </details>
  );
}

interface OneProperties {
  column: ExploredColumn;
  brush: Brush | null;
  onBrush: (name: string, brush: Brush | null) => void;
}

function Ends({ column, brush, onBrush }: OneProperties) {
  const { low, high } =
    brush !== null && !("labels" in brush) ? brush : { low: null, high: null };
  const end = (which: "low" | "high") => (
    <input
      type="number"
      step="any"
      placeholder={which === "low" ? "from" : "to"}
      aria-label={`${column.label}, ${which === "low" ? "from" : "to"}`}
      value={(which === "low" ? low : high) ?? ""}
      onChange={(event) => {
        const value = event.currentTarget.valueAsNumber;
        const ends = { low, high, [which]: Number.isNaN(value) ? null : value };
        onBrush(column.name, { name: column.name, ...ends });
      }}
    />
  );
  return (
    <>
      {end("low")} {end("high")}
    </>
  );
}

function Labels({ column, brush, onBrush }: OneProperties) {
  const labels = brush !== null && "labels" in brush ? brush.labels : [];
  return (
    <>
      {column.categories.slice(0, MOST).map(({ label }, index) => (
        <label key={index}>
          <input
            type="checkbox"
            checked={labels.includes(label)}
            onChange={(event) => {
              const others = labels.filter((one) => one !== label);
              const next = event.currentTarget.checked ? [...others, label] : others;
              onBrush(column.name, { name: column.name, labels: next });
            }}
          />
          {label}
        </label>
      ))}
    </>
  );
}
