/** The names of a figure's series; each is a button that hides its line. */

import type { Series } from "../schema";
import { colourVariable } from "../theme";

export const MANY = 8; // of more runs the letters stand alone: their names are in the tables

/** "A" of "A: base". */
export function letterOf(name: string): string {
  return name.split(":", 1)[0]!;
}

interface Properties {
  series: readonly Series[];
  hidden: ReadonlySet<string>;
  onToggle: (hidden: ReadonlySet<string>) => void;
}

export function Legend({ series, hidden, onToggle }: Properties) {
  if (series.length < 2) return null;
  const isCrowded = series.length > MANY && series.every((one) => one.at !== null);
  const toggle = (name: string): void => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    onToggle(series.every((one) => next.has(one.name)) ? new Set() : next);
  };
  return (
    <div class="legend">
      {series.map((one) => (
        <button
          key={one.name}
          type="button"
          class="legend-item"
          aria-pressed={!hidden.has(one.name)}
          title={`${hidden.has(one.name) ? "Show" : "Hide"}${isCrowded ? ` ${one.name}` : ""}`}
          onClick={() => toggle(one.name)}
        >
          <span class={`swatch${one.dashed ? " dashed" : ""}`} style={swatch(one)} />
          {isCrowded ? <span aria-label={one.name}>{letterOf(one.name)}</span> : one.name}
        </button>
      ))}
    </div>
  );
}

/** The same names where nothing can be hidden. */
export function Key({ series }: { series: readonly Series[] }) {
  if (series.length < 2) return null;
  return (
    <div class="legend">
      {series.map((one) => (
        <span key={one.name} class="legend-item">
          <span class="swatch" style={swatch(one)} />
          {one.name}
        </span>
      ))}
    </div>
  );
}

function swatch(series: Series): Record<string, string> {
  return { color: colourVariable(series.colour) };
}
