/** Every figure's numbers as a table: not everybody sees a picture, and some want the numbers. */

import { axisWords, written } from "../numbers";
import type { Axis, Bars, Branch, Figure, FlameGraph, Heatmap, LayerTree, Lines, RankGrid, Series } from "../schema";

const MOST_ROWS = 200;
const MOST_COLUMNS = 40;

export interface Numbers {
  columns: readonly string[];
  rows: readonly (readonly string[])[];
  note: string | null;
}

export function numbersOf(figure: Figure): Numbers {
  switch (figure.type) {
    case "lines":
      return thinned(linesNumbers(figure));
    case "heatmap":
      return thinned(heatNumbers(figure));
    case "rank_grid":
      return thinned(rankNumbers(figure));
    case "bars":
      return thinned(barsNumbers(figure));
    case "waterfall":
      return {
        columns: ["Change", axisWords(figure.y.label, figure.y.unit), "In words"],
        rows: figure.changes.map((one) => [one.name, written(one.value), one.text]),
        note: null,
      };
    case "points":
      return thinned({
        columns: ["", named(figure.x), named(figure.y)],
        rows: figure.points.map(({ note, label, x, y }) => [note || label, written(x), written(y)]),
        note: null,
      });
    case "tree":
      return {
        columns: ["Part", "Value", "Share"],
        rows: branchNumbers(figure.root, 0),
        note: null,
      };
    case "layers":
      return layerNumbers(figure);
    case "flame":
      return flameNumbers(figure);
  }
}

function rankNumbers({ nodes, ranks, values, value }: RankGrid): Numbers {
  return {
    columns: ["Node", "Rank", named(value)],
    rows: nodes.flatMap((node, place) =>
      ranks[place]!.map((rank, local) => [node, written(rank), written(values[place]![local])]),
    ),
    note: null,
  };
}

function named(axis: Axis): string {
  return axisWords(axis.label || "Place", axis.unit);
}

function linesNumbers({ x, y, at, series, band }: Lines): Numbers {
  const unit = y.unit === "" ? "" : ` (${y.unit})`;
  if (series.some((one) => one.at !== null)) return overlaidNumbers(x, unit, at, series);
  return {
    columns: [named(x), ...series.flatMap((one) => columnsOf(one, band).map((name) => name + unit))],
    rows: at.map((place, index) => [
      written(place),
      ...series.flatMap((one) => cellsOf(one, index)),
    ]),
    note: null,
  };
}

/** Runs have their values at places of their own: a row for each place that any of them has. */
function overlaidNumbers(
  x: Axis,
  unit: string,
  at: readonly number[],
  series: readonly Series[],
): Numbers {
  const known = series.map(
    (one) => new Map((one.at ?? at).map((place, index) => [place, one.values[index] ?? null])),
  );
  const places = [...new Set(known.flatMap((values) => [...values.keys()]))];
  places.sort((one, other) => one - other);
  return {
    columns: [named(x), ...series.map((one) => one.name + unit)],
    rows: places.map((place) => [
      written(place),
      ...known.map((values) => (values.has(place) ? written(values.get(place)) : "")),
    ]),
    note: null,
  };
}

/** A point that stands for several values has three numbers. */
function columnsOf({ name, low }: Series, band: string | null): string[] {
  const ends = band === null ? ["Lowest", "Highest"] : [`${band}, from`, `${band}, to`];
  return low === null ? [name] : [`${name}, mean`, ...ends];
}

function cellsOf({ values, low, high }: Series, index: number): string[] {
  const mean = written(values[index]);
  return low === null ? [mean] : [mean, written(low[index]), written(high?.[index])];
}

function heatNumbers({ x, at, rows, values, value }: Heatmap): Numbers {
  const shown = rows.slice(0, MOST_COLUMNS);
  const left = rows.length - shown.length;
  const leftOut = left > 0 ? ` The last ${left} rows of the picture are left out.` : "";
  return {
    columns: [named(x), ...shown],
    rows: at.map((place, index) => [
      written(place),
      ...shown.map((_, row) => written(values[row]?.[index])),
    ]),
    note: `${named(value)}.${leftOut}`,
  };
}

function barsNumbers({ categories, series, x }: Bars): Numbers {
  const unit = x.unit === "" ? "" : ` (${x.unit})`;
  return {
    columns: ["", ...series.map((one) => one.name + unit)],
    rows: categories.map((name, index) => [
      name,
      ...series.map((one) => written(one.values[index])),
    ]),
    note: null,
  };
}

function branchNumbers(branch: Branch, depth: number): string[][] {
  const name = "\u00a0\u00a0".repeat(depth) + branch.name;
  return [
    [name, branch.text, written(100 * branch.share, "%")],
    ...branch.parts.flatMap((part) => branchNumbers(part, depth + 1)),
  ];
}

/** Each layer by itself; of many those that take the longest. */
function layerNumbers({ single: { rows, columns } }: LayerTree): Numbers {
  const longest = columns.find(({ id }) => id === "own")?.whole ?? [];
  const places = rows
    .map((_, place) => place)
    .sort((one, other) => (longest[other] ?? -1) - (longest[one] ?? -1))
    .slice(0, MOST_ROWS);
  const left = rows.length - places.length;
  return {
    columns: ["Layer", "Class", ...columns.map(({ label, unit }) => axisWords(label, unit))],
    rows: places.map((place) => [
      rows[place]!.name,
      rows[place]!.kind,
      ...columns.map((column) => written((column.own ?? column.whole)[place])),
    ]),
    note: left > 0 ? `The ${written(left)} layers that take the least time are left out.` : null,
  };
}

/** Every so many rows, where all of them would be too many to read. */
function thinned(numbers: Numbers): Numbers {
  const count = numbers.rows.length;
  if (count <= MOST_ROWS) return numbers;
  const every = Math.ceil(count / MOST_ROWS);
  const words = `One of every ${every} of ${written(count)} rows is shown.`;
  return {
    columns: numbers.columns,
    rows: numbers.rows.filter((_, index) => index % every === 0 || index === count - 1),
    note: numbers.note === null ? words : `${numbers.note} ${words}`,
  };
}

/** All calls of the last view, which leaves none out. */
function flameNumbers({ views }: FlameGraph): Numbers {
  const boxes = views[views.length - 1]!.boxes;
  const depths: number[] = [];
  const rows = boxes.map(({ label, place, parent, words }) => {
    const depth = parent < 0 ? 0 : depths[parent]! + 1;
    depths.push(depth);
    return ["\u2003".repeat(depth) + label, place, words];
  });
  return thinned({ columns: ["Call", "Place", "In words"], rows, note: null });
}
