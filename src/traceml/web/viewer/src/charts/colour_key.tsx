/** What the colours of runs stand for. */

import { written } from "../numbers";
import { RAMP } from "../schema";
import { colourVariable, useTheme } from "../theme";
import { wordsOf } from "../pieces/run_values";
import { type RunColours, SERIES_COLOURS } from "./run_colours";

const MOST = 16;

export function ColourKey({ colours }: { colours: RunColours }) {
  const theme = useTheme();
  const { column, scale } = colours;
  if (column === null) return null;
  if (scale !== null) {
    const ends = [scale.valueAt(0), scale.valueAt(1)].map((value) =>
      column.kind === "moment" ? wordsOf(column, value) : written(rounded(value), column.unit),
    );
    return (
      <div class="ramp">
        <span>{column.label}</span>
        <span>{ends[0]}</span>
        <span
          class="ramp-bar"
          style={{ background: `linear-gradient(to right, ${RAMP[theme].join(", ")})` }}
        />
        <span>{ends[1]}</span>
      </div>
    );
  }
  const more = column.categories.length - MOST;
  return (
    <div class="legend">
      <span class="legend-item hint">{column.label}</span>
      {column.categories.slice(0, MOST).map(({ label }, index) => (
        <span key={index} class="legend-item">
          <span
            class="swatch"
            style={{ color: colourVariable(`series-${(index % SERIES_COLOURS) + 1}`) }}
          />
          {label}
        </span>
      ))}
      {more > 0 && <span class="legend-item hint">and {more} more</span>}
      {column.categories.length > SERIES_COLOURS && (
        <span class="legend-item hint">Colours repeat after {SERIES_COLOURS} values.</span>
      )}
    </div>
  );
}

function rounded(value: number): number {
  return Number(value.toPrecision(4));
}
