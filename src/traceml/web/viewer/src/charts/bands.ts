/** Behind a curve the range of each point's values, above it those that cannot be drawn. */

import type { Lines, Mark, Series } from "../schema";
import { colourOf, type Theme } from "../theme";
import type { Range } from "./zoom";

const STYLE = { fillOpacity: 0.2, strokeOpacity: 0.5, lineWidth: 0.8 }; // a lone peak is seen, too
const MARK_PX = 5;
const LETTER_PX = 7.2; // about the width of a letter of the marks' font

interface Drawing {
  dataIndex: number;
  coordSys: { x: number; y: number; width: number; height: number };
}
interface Coordinates {
  coord: (place: readonly [number, number]) => [number, number];
}

/** The band from the lowest to the highest value of each point; `null` where there is none. */
export function bandOf(series: Series, figure: Lines, isLog: boolean, theme: Theme): object | null {
  const stretches = stretchesOf(series, figure, isLog);
  if (stretches.length === 0) return null;
  const fill = colourOf(series.colour, theme);
  return {
    id: `${series.name}: range`,
    type: "custom",
    silent: true,
    clip: true,
    z: 1,
    tooltip: { show: false },
    data: stretches.map((points) => [points[0]![0], points[points.length - 1]![0], null]),
    encode: { x: [0, 1], y: 2 },
    renderItem: (drawing: unknown, api: unknown) => {
      const points = stretches[(drawing as Drawing).dataIndex];
      const { coord } = api as Coordinates;
      if (points === undefined) return null;
      const upper = points.map(([at, , high]) => coord([at, high]));
      const lower = points.map(([at, low]) => coord([at, low])).reverse();
      const outline = points.length === 1 ? widened(upper[0]!, lower[0]!) : [...upper, ...lower];
      const style = { ...STYLE, fill, stroke: fill };
      return { type: "polygon", shape: { points: outline }, style };
    },
  };
}

/** A single point has no width of its own. */
function widened([x, top]: [number, number], [, bottom]: [number, number]): [number, number][] {
  return [
    [x - 1, top],
    [x + 1, top],
    [x + 1, bottom],
    [x - 1, bottom],
  ];
}

/** Neighbouring points that have a range: place, lowest, highest. */
function stretchesOf(series: Series, figure: Lines, isLog: boolean): [number, number, number][][] {
  const at = series.at ?? figure.at;
  const found: [number, number, number][][] = [];
  let open: [number, number, number][] | null = null;
  const floor = isLog ? lowestAbove(series) : -Infinity;
  at.forEach((place, index) => {
    const low = series.low?.[index] ?? null;
    const high = series.high?.[index] ?? null;
    if (low === null || high === null || high < floor) open = null;
    else if (open === null) found.push((open = [[place, Math.max(low, floor), high]]));
    else open.push([place, Math.max(low, floor), high]);
  });
  return found;
}

/** The lowest value that has a place on a logarithmic axis. */
function lowestAbove(series: Series): number {
  let least = Infinity;
  for (const values of [series.low ?? [], series.values]) {
    for (const value of values) if (value !== null && value > 0 && value < least) least = value;
  }
  return least;
}

/** Values that cannot be drawn, as bars along the top of the picture with what they are. */
export function marksOf(marks: readonly Mark[], whole: Range, theme: Theme): object {
  const fill = colourOf("crit", theme);
  let wordsEnd = -Infinity; // of the last mark that has words: they do not cover each other
  return {
    id: "marks",
    type: "custom",
    silent: true,
    z: 4,
    tooltip: { show: false },
    data: marks.map(({ begin, until }) => [
      Math.max(begin, whole[0]),
      Math.min(Math.max(until, begin), whole[1]),
      null,
    ]),
    encode: { x: [0, 1], y: 2 },
    renderItem: (drawing: unknown, api: unknown) => {
      const { dataIndex, coordSys } = drawing as Drawing;
      const mark = marks[dataIndex];
      const { coord } = api as Coordinates;
      if (dataIndex === 0) wordsEnd = -Infinity;
      if (mark === undefined) return null;
      const right = coordSys.x + coordSys.width;
      const begin = coord([mark.begin, 0])[0];
      const end = coord([mark.until, 0])[0];
      if (end < coordSys.x - 1 || begin > right + 1) return null;
      const x = Math.max(coordSys.x, Math.min(begin, right - 3));
      const width = Math.max(3, Math.min(end, right) - x);
      const bar = {
        type: "rect",
        shape: { x, y: coordSys.y, width, height: MARK_PX },
        style: { fill },
      };
      const wide = mark.label.length * LETTER_PX;
      const left = Math.min(x, right - wide);
      if (left < wordsEnd + 4) return bar;
      wordsEnd = left + wide;
      const words = {
        type: "text",
        style: {
          x: left,
          y: coordSys.y + MARK_PX + 2,
          text: mark.label,
          fill,
          font: "bold 11px sans-serif",
          verticalAlign: "top",
        },
      };
      return { type: "group", children: [bar, words] };
    },
  };
}
