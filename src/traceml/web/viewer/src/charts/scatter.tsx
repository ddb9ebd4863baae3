/** A dot per run, over two columns, with a third as its colour and a fourth as its size. */

import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { type Brush, rangeBrush } from "../pieces/brushes";
import { wordsOf } from "../pieces/run_values";
import { type ExploredColumn, GROUND } from "../schema";
import { axisWords } from "../numbers";
import { colourOf, type Theme, useTheme } from "../theme";
import { ink } from "./axes";
import { type Paint, Painting, PaintingTip, type Size } from "./painting";
import type { RunColours } from "./run_colours";
import { type Scale, scaleOf } from "./scales";

const HEIGHT = 400;
const LEFT = 74;
const RIGHT = 16;
const TOP = 14;
const BOTTOM = 50;
const NEAR_PX = 14;
const DRAG_PX = 5;
const SMALLEST = 3;
const LARGEST = 11;
const TURN = 2 * Math.PI;

interface Properties {
  x: Scale;
  y: Scale;
  size: ExploredColumn | null;
  names: readonly string[];
  colours: RunColours;
  chosen: Uint8Array | null;
  /** The runs of the Pareto front, from cheap to expensive. */
  front: readonly number[];
  /** What the tip says of a run. */
  told: readonly ExploredColumn[];
  onSelect: (brushes: readonly Brush[]) => void;
  onOpen: (run: number) => void;
}

interface Dots {
  x: Float64Array;
  y: Float64Array;
  radius: Float64Array;
}

type Corner = readonly [number, number];

export function ScatterView(properties: Properties) {
  const { x, y, size, names, colours, chosen, front, told, onSelect, onOpen } = properties;
  const theme = useTheme();
  const [frame, setFrame] = useState<Size>({ width: 0, height: HEIGHT });
  const [pointed, setPointed] = useState<number | null>(null);
  const [drag, setDrag] = useState<readonly [Corner, Corner] | null>(null);
  const pressed = useRef<Corner | null>(null);
  const tapped = useRef<number | null>(null);
  const dots = useMemo(() => dotsOf(x, y, size, frame), [x, y, size, frame]);
  const paint = useCallback<Paint>(
    (context, at) => {
      const here = dotsOf(x, y, size, at);
      paintGrid(context, at, x, y, theme);
      paintDots(context, here, colours, chosen, theme);
      paintFront(context, here, front, theme);
    },
    [x, y, size, colours, chosen, front, theme],
  );
  const paintOver = useCallback<Paint>(
    (context) => {
      if (drag !== null) paintDrag(context, drag, theme);
      if (pointed === null) return;
      context.lineWidth = 2.5;
      context.strokeStyle = colourOf("between", theme);
      context.beginPath();
      context.arc(dots.x[pointed]!, dots.y[pointed]!, dots.radius[pointed]! + 2, 0, TURN);
      context.stroke();
    },
    [dots, pointed, drag, theme],
  );
  return (
    <Painting
      height={HEIGHT}
      paint={paint}
      paintOver={paintOver}
      onSize={setFrame}
      cursor={pointed === null ? "crosshair" : "pointer"}
      onDown={(left, top, event) => {
        // A finger scrolls the page.
        if (event.pointerType !== "touch" && event.button === 0) pressed.current = [left, top];
      }}
      onMove={(left, top, event) => {
        const from = event.buttons === 0 ? null : pressed.current;
        setPointed(from === null ? nearestDot(dots, left, top) : null);
        if (from !== null) setDrag([from, [left, top]]);
      }}
      onUp={(left, top, event) => {
        const from = pressed.current;
        pressed.current = null;
        setDrag(null);
        const isDrag = from !== null && Math.hypot(left - from[0], top - from[1]) > DRAG_PX;
        if (isDrag) return onSelect(brushesIn(x, y, frame, from, [left, top]));
        const found = nearestDot(dots, left, top);
        // The first tap of a finger says which run it is, the second opens it.
        const isTold = event.pointerType !== "touch" || found === tapped.current;
        if (found !== null && isTold) return onOpen(found);
        tapped.current = found;
        setPointed(found);
      }}
      onLeave={() => {
        setPointed(null);
        setDrag(null);
      }}
    >
      {pointed !== null && (
        <PaintingTip
          x={dots.x[pointed]!}
          y={dots.y[pointed]!}
          width={frame.width}
          title={names[pointed] ?? ""}
          rows={told.map((column) => [column.label, wordsOf(column, column.values[pointed])])}
        />
      )}
    </Painting>
  );
}

function dotsOf(x: Scale, y: Scale, size: ExploredColumn | null, { width, height }: Size): Dots {
  const count = x.places.length;
  const dots: Dots = {
    x: new Float64Array(count),
    y: new Float64Array(count),
    radius: new Float64Array(count).fill(count > 2000 ? 2.5 : 4),
  };
  const sizes = size === null ? null : scaleOf(size, false).places;
  for (let run = 0; run < count; run++) {
    dots.x[run] = LEFT + x.places[run]! * (width - LEFT - RIGHT) + jitter(x, run);
    dots.y[run] = height - BOTTOM - y.places[run]! * (height - TOP - BOTTOM) + jitter(y, run + 7);
    if (sizes === null) continue;
    const place = sizes[run]!;
    // The area, not the radius, is what the eye compares.
    dots.radius[run] = Number.isNaN(place)
      ? SMALLEST - 1
      : Math.sqrt(SMALLEST ** 2 + place * (LARGEST ** 2 - SMALLEST ** 2));
  }
  return dots;
}

/** Runs of one category would lie on one another: each is moved a little, always the same way. */
function jitter({ column }: Scale, run: number): number {
  return column.kind === "category" ? (((run * 0.618034) % 1) - 0.5) * 16 : 0;
}

function paintGrid(
  context: CanvasRenderingContext2D,
  { width, height }: Size,
  x: Scale,
  y: Scale,
  theme: Theme,
): void {
  const { text, line, grid } = ink(theme);
  const [right, bottom] = [width - RIGHT, height - BOTTOM];
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  context.fillStyle = text;
  const stroke = (colour: string, fromX: number, fromY: number, toX: number, toY: number): void => {
    context.strokeStyle = colour;
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
  };
  context.textAlign = "center";
  context.textBaseline = "top";
  let end = -Infinity;
  for (const { at, label } of x.ticks) {
    const place = LEFT + at * (right - LEFT);
    stroke(grid, place, TOP, place, bottom);
    const half = context.measureText(label).width / 2;
    if (place - half < end + 6) continue;
    end = place + half;
    context.fillText(label, place, bottom + 6);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const { at, label } of y.ticks) {
    const place = bottom - at * (bottom - TOP);
    stroke(grid, LEFT, place, right, place);
    const short = label.length > 10 ? `${label.slice(0, 9)}…` : label;
    context.fillText(short, LEFT - 6, place);
  }
  stroke(line, LEFT, bottom, right, bottom);
  stroke(line, LEFT, TOP, LEFT, bottom);
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillText(axisWords(x.column.label, x.column.unit), (LEFT + right) / 2, height - 4);
  context.save();
  context.translate(12, (TOP + bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(axisWords(y.column.label, y.column.unit), 0, 0);
  context.restore();
}

function paintDots(
  context: CanvasRenderingContext2D,
  dots: Dots,
  colours: RunColours,
  chosen: Uint8Array | null,
  theme: Theme,
): void {
  const count = dots.x.length;
  const dot = (run: number): void => {
    if (Number.isNaN(dots.x[run]! + dots.y[run]!)) return;
    context.beginPath();
    context.arc(dots.x[run]!, dots.y[run]!, dots.radius[run]!, 0, TURN);
    context.fill();
    if (count <= 2000) context.stroke();
  };
  context.lineWidth = 0.7;
  context.strokeStyle = GROUND[theme];
  if (chosen !== null) {
    context.globalAlpha = 0.5;
    context.fillStyle = ink(theme).line;
    for (let run = 0; run < count; run++) if (chosen[run] === 0) dot(run);
  }
  context.globalAlpha = count > 500 ? 0.6 : 0.85;
  for (let run = 0; run < count; run++) {
    if (chosen?.[run] === 0) continue;
    context.fillStyle = colours.colours[colours.numbers[run]!]!;
    dot(run);
  }
  context.globalAlpha = 1;
}

/** In steps: a run is beaten by all that lies to the right of it and is worse. */
function paintFront(
  context: CanvasRenderingContext2D,
  dots: Dots,
  front: readonly number[],
  theme: Theme,
): void {
  if (front.length === 0) return;
  context.strokeStyle = colourOf("crit", theme);
  context.lineWidth = 1.6;
  context.setLineDash([5, 4]);
  context.beginPath();
  front.forEach((run, index) => {
    const [x, y] = [dots.x[run]!, dots.y[run]!];
    if (index === 0) context.moveTo(x, y);
    else {
      context.lineTo(x, dots.y[front[index - 1]!]!);
      context.lineTo(x, y);
    }
  });
  context.stroke();
  context.setLineDash([]);
  for (const run of front) {
    context.beginPath();
    context.arc(dots.x[run]!, dots.y[run]!, dots.radius[run]! + 2, 0, TURN);
    context.stroke();
  }
}

function paintDrag(
  context: CanvasRenderingContext2D,
  [from, to]: readonly [Corner, Corner],
  theme: Theme,
): void {
  context.fillStyle = ink(theme).window;
  context.strokeStyle = colourOf("info", theme);
  context.lineWidth = 1;
  const box = [from[0], from[1], to[0] - from[0], to[1] - from[1]] as const;
  context.fillRect(...box);
  context.strokeRect(...box);
}

function nearestDot(dots: Dots, x: number, y: number): number | null {
  let [best, distance] = [-1, NEAR_PX];
  for (let run = 0; run < dots.x.length; run++) {
    const away = Math.hypot(dots.x[run]! - x, dots.y[run]! - y);
    if (away < distance) [best, distance] = [run, away];
  }
  return best === -1 ? null : best;
}

/** A rectangle is a part of both axes. */
function brushesIn(x: Scale, y: Scale, { width, height }: Size, from: Corner, to: Corner): Brush[] {
  const across = (place: number): number => (place - LEFT) / (width - LEFT - RIGHT);
  const up = (place: number): number => (height - BOTTOM - place) / (height - TOP - BOTTOM);
  return [
    brushOn(x, across(Math.min(from[0], to[0])), across(Math.max(from[0], to[0]))),
    brushOn(y, up(Math.max(from[1], to[1])), up(Math.min(from[1], to[1]))),
  ];
}

function brushOn(scale: Scale, low: number, high: number): Brush {
  const { column } = scale;
  if (column.kind !== "category") {
    return rangeBrush(column, scale.valueAt(low), scale.valueAt(high));
  }
  const inside = column.categories.filter((_, index) => {
    const place = scale.placeOf(index);
    return place >= low && place <= high;
  });
  return { name: column.name, labels: inside.map(({ label }) => label) };
}
