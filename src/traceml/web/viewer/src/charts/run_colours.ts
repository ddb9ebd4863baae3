/** The colour of each run: along a ramp by a number, or one of a few by a category. */

import type { ExploredColumn } from "../schema";
import { RAMP } from "../schema";
import { colourOf, type Theme } from "../theme";
import { type Scale, scaleOf } from "./scales";

const LEVELS = 64;
export const SERIES_COLOURS = 8;

export interface RunColours {
  column: ExploredColumn | null;
  /** By run: which of the colours; 0 is that of runs without a value. */
  numbers: Uint16Array;
  colours: readonly string[];
  scale: Scale | null;
}

export function runColours(
  column: ExploredColumn | null,
  count: number,
  isLog: boolean,
  theme: Theme,
): RunColours {
  const numbers = new Uint16Array(count);
  const muted = colourOf("muted", theme);
  if (column === null) {
    return { column, numbers: numbers.fill(1), colours: [muted, colourOf("info", theme)], scale: null };
  }
  if (column.kind === "category") {
    column.values.forEach((value, run) => {
      if (value !== null) numbers[run] = (value % SERIES_COLOURS) + 1;
    });
    const names = Array.from({ length: SERIES_COLOURS }, (_, index) => `series-${index + 1}`);
    return {
      column,
      numbers,
      colours: [muted, ...names.map((name) => colourOf(name, theme))],
      scale: null,
    };
  }
  const scale = scaleOf(column, isLog);
  scale.places.forEach((place, run) => {
    if (!Number.isNaN(place)) numbers[run] = Math.min(LEVELS, Math.floor(place * LEVELS) + 1);
  });
  const levels = Array.from({ length: LEVELS }, (_, level) => rampColour(level / (LEVELS - 1), theme));
  return { column, numbers, colours: [muted, ...levels], scale };
}

/** A colour of the ramp, from 0 to 1. */
export function rampColour(place: number, theme: Theme): string {
  const stops = RAMP[theme];
  const at = Math.max(0, Math.min(1, place)) * (stops.length - 1);
  const from = channels(stops[Math.floor(at)]!);
  const to = channels(stops[Math.ceil(at)]!);
  return `rgb(${from.map((one, index) => Math.round(one + (to[index]! - one) * (at % 1))).join(" ")})`;
}

function channels(hex: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}
