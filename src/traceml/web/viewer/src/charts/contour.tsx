/** A metric as a surface over two parameters: filled levels, their lines, and the runs. */

import { useCallback } from "preact/hooks";
import { axisNumber, written } from "../numbers";
import { type Contour, type ExploredColumn, GROUND } from "../schema";
import { RAMP } from "../schema";
import { type Theme, useTheme } from "../theme";
import { ink } from "./axes";
import { haloed, type Paint, Painting, type Size } from "./painting";
import { rampColour } from "./run_colours";
import { type Scale, scaleOf } from "./scales";

const HEIGHT = 340;
const LEFT = 66;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 46;

export function ContourView({ figure }: { figure: Contour }) {
  const theme = useTheme();
  const paint = useCallback<Paint>((context, size) => paintContour(context, size, figure, theme), [
    figure,
    theme,
  ]);
  const title = `figure-${figure.id}`;
  const [low, high] = endsOf(figure);
  return (
    <figure class="figure" aria-labelledby={title}>
      <figcaption>
        <h3 id={title}>{figure.title}</h3>
      </figcaption>
      <div class="ramp">
        <span>{written(low)}</span>
        <span
          class="ramp-bar"
          style={{ background: `linear-gradient(to right, ${RAMP[theme].join(", ")})` }}
        />
        <span>{written(high)}</span>
      </div>
      <Painting height={HEIGHT} paint={paint} paintOver={null} />
      {figure.caption && <p class="caption">{figure.caption}</p>}
    </figure>
  );
}

function endsOf({ surface }: Contour): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const row of surface) {
    for (const value of row) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/** An axis for numbers alone, as the columns of runs have one. */
function axisOf(label: string, values: readonly number[], isLog: boolean): Scale {
  const column: ExploredColumn = {
    name: label,
    label,
    kind: "number",
    values,
    unit: "",
    categories: [],
    is_log: isLog,
    left_out: null,
  };
  return scaleOf(column, isLog);
}

/** What everything is painted on: places along both axes, from 0 to 1, and where those are. */
interface Plane {
  context: CanvasRenderingContext2D;
  across: Scale;
  down: Scale;
  x: (place: number) => number;
  y: (place: number) => number;
  theme: Theme;
}

function paintContour(
  context: CanvasRenderingContext2D,
  size: Size,
  figure: Contour,
  theme: Theme,
): void {
  const across = axisOf(figure.across, figure.at_across, figure.is_across_log);
  const down = axisOf(figure.down, figure.at_down, figure.is_down_log);
  const x = (place: number): number => LEFT + place * (size.width - LEFT - RIGHT);
  const y = (place: number): number => size.height - BOTTOM - place * (size.height - TOP - BOTTOM);
  const plane: Plane = { context, across, down, x, y, theme };
  paintLevels(plane, figure);
  for (const level of figure.levels) paintLine(plane, figure, level);
  const [low, high] = endsOf(figure);
  context.strokeStyle = GROUND[theme];
  context.lineWidth = 1;
  for (const [atX, atY, value] of figure.points) {
    context.fillStyle = rampColour((value! - low) / (high - low || 1), theme);
    context.beginPath();
    context.arc(x(across.placeOf(atX!)), y(down.placeOf(atY!)), 3, 0, 7);
    context.fill();
    context.stroke();
  }
  paintAxes(plane, size);
}

/** Each cell in the colour of its level. */
function paintLevels(
  { context, across, down, x, y, theme }: Plane,
  { surface, levels }: Contour,
): void {
  context.globalAlpha = 0.45;
  const [rows, columns] = [down.places.length, across.places.length];
  const wide = (x(1) - x(0)) / columns;
  const tall = (y(0) - y(1)) / rows;
  surface.forEach((row, index) => {
    row.forEach((value, place) => {
      if (value === null) return;
      const level = levels.filter((one) => one <= value).length;
      context.fillStyle = rampColour(level / Math.max(1, levels.length), theme);
      const left = x(0) + place * wide;
      context.fillRect(left, y(0) - (index + 1) * tall, wide + 0.5, tall + 0.5);
    });
  });
  context.globalAlpha = 1;
}

/** The line of one level, cell by cell: where it crosses the edges of each. */
function paintLine(
  { context, across, down, x, y, theme }: Plane,
  { surface }: Contour,
  level: number,
): void {
  context.strokeStyle = ink(theme).text;
  context.lineWidth = 0.8;
  context.beginPath();
  const passed: [number, number][] = [];
  for (let row = 0; row + 1 < surface.length; row++) {
    for (let column = 0; column + 1 < across.places.length; column++) {
      const crossings = crossed(surface, row, column, level).map(([atX, atY]): [number, number] => [
        x(between(across.places, atX)),
        y(between(down.places, atY)),
      ]);
      for (let index = 0; index + 1 < crossings.length; index += 2) {
        context.moveTo(...crossings[index]!);
        context.lineTo(...crossings[index + 1]!);
        passed.push(crossings[index]!);
      }
    }
  }
  context.stroke();
  const named = passed[passed.length >> 1]; // about the middle of the line
  if (named === undefined) return;
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  haloed(context, axisNumber(Number(level.toPrecision(3))), ...named, GROUND[theme], ink(theme).text);
}

function between(places: Float64Array, at: number): number {
  const first = Math.floor(at);
  const next = places[first + 1] ?? places[first]!;
  return places[first]! + (next - places[first]!) * (at - first);
}

function crossed(
  surface: readonly (readonly (number | null)[])[],
  row: number,
  column: number,
  level: number,
): [number, number][] {
  const corners = [
    [column, row],
    [column + 1, row],
    [column + 1, row + 1],
    [column, row + 1],
  ] as const;
  const values = corners.map(([atX, atY]) => surface[atY]?.[atX] ?? null);
  if (values.some((value) => value === null)) return [];
  const found: [number, number][] = [];
  corners.forEach(([fromX, fromY], index) => {
    const [toX, toY] = corners[(index + 1) % 4]!;
    const [from, to] = [values[index]!, values[(index + 1) % 4]!];
    if (from < level === to < level) return;
    const share = (level - from) / (to - from);
    found.push([fromX + (toX - fromX) * share, fromY + (toY - fromY) * share]);
  });
  return found;
}

function paintAxes(
  { context, across, down, x, y, theme }: Plane,
  { width, height }: Size,
): void {
  const { text, line } = ink(theme);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = text;
  context.strokeStyle = line;
  context.strokeRect(x(0), y(1), x(1) - x(0), y(0) - y(1));
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const { at, label } of across.ticks) context.fillText(label, x(at), y(0) + 6);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const { at, label } of down.ticks) context.fillText(label, x(0) - 6, y(at));
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillText(across.column.label, (LEFT + width - RIGHT) / 2, height - 4);
  context.save();
  context.translate(11, (y(0) + y(1)) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(down.column.label, 0, 0);
  context.restore();
}
