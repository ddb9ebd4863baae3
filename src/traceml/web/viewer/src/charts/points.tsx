/** Things in a plane of two quantities, drawn as plain shapes: they scale and print by themselves. */

import { useState } from "preact/hooks";
import { axisNumber, axisWords, written } from "../numbers";
import type { Axis, Point, Points } from "../schema";
import { colourVariable } from "../theme";
import { Key } from "./legend";

const MAX_WIDTH = 640;
const HEIGHT = 300;
const AROUND = 70; // what a page has on both sides of a figure, where it is narrow
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 24, 16, 44];
const MANY = 60; // beyond it points are small, and nobody reads their names
const MAX_TICKS = 12;
const MIN_ROOM = 1e-6; // of the values' size: closer together, they cannot be told apart
const MARGIN = 0.06; // of the range of the values, on either side

export function PointsView({ figure }: { figure: Points }) {
  const [told, setTold] = useState<Point | null>(null);
  const width = Math.max(240, Math.min(MAX_WIDTH, window.innerWidth - AROUND));
  const across = rangeOf(figure.points.map(({ x }) => x));
  const up = rangeOf(figure.points.map(({ y }) => y));
  const placeX = (x: number): number =>
    LEFT + ((x - across.low) / (across.high - across.low)) * (width - LEFT - RIGHT);
  const placeY = (y: number): number =>
    HEIGHT - BOTTOM - ((y - up.low) / (up.high - up.low)) * (HEIGHT - TOP - BOTTOM);
  const isMany = figure.points.length > MANY;
  return (
    <>
      <Key series={figure.key} />
      <svg class="points" viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={figure.title}>
        {ticksOf(across).map((x) => (
          <g key={x} class="points-tick">
            <line x1={placeX(x)} x2={placeX(x)} y1={TOP} y2={HEIGHT - BOTTOM} />
            <text x={placeX(x)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
              {axisNumber(x)}
            </text>
          </g>
        ))}
        {ticksOf(up).map((y) => (
          <g key={y} class="points-tick">
            <line x1={LEFT} x2={width - RIGHT} y1={placeY(y)} y2={placeY(y)} />
            <text x={LEFT - 8} y={placeY(y) + 4} text-anchor="end">
              {axisNumber(y)}
            </text>
          </g>
        ))}
        <text class="points-axis" x={width - RIGHT} y={HEIGHT - 8} text-anchor="end">
          {axisWords(figure.x.label, figure.x.unit)}
        </text>
        <text class="points-axis" x={4} y={11}>
          {axisWords(figure.y.label, figure.y.unit)}
        </text>
        {figure.points.map((point, index) => (
          <g key={index} onMouseEnter={() => setTold(point)} onMouseLeave={() => setTold(null)}>
            <title>{words(point, figure.x, figure.y)}</title>
            <circle
              cx={placeX(point.x)}
              cy={placeY(point.y)}
              r={isMany ? 3 : 6}
              style={{
                stroke: colourVariable(point.colour),
                fill: point.is_filled ? colourVariable(point.colour) : "var(--surface)",
              }}
            />
            {!isMany && point.label !== "" && (
              <text class="points-name" x={placeX(point.x) + 10} y={placeY(point.y) + 4}>
                {point.label}
              </text>
            )}
          </g>
        ))}
      </svg>
      <p class="caption points-told" aria-live="polite">
        {told === null ? "\u00a0" : words(told, figure.x, figure.y)}
      </p>
    </>
  );
}

function words(point: Point, x: Axis, y: Axis): string {
  const values = [x, y].map(({ label, unit }, place) => {
    const value = written(place === 0 ? point.x : point.y, unit);
    return label === "" ? value : `${label} ${value}`;
  });
  return `${point.note}: ${values.join(", ")}`;
}

interface Ends {
  low: number;
  high: number;
}

function rangeOf(values: readonly number[]): Ends {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const size = Math.max(Math.abs(least), Math.abs(most));
  const room = Math.max((most - least) * MARGIN, size * MIN_ROOM) || 1;
  return { low: least - room, high: most + room };
}

/** A few round numbers between the ends. */
function ticksOf({ low, high }: Ends): number[] {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((one) => one >= rough)!;
  const first = Math.ceil(low / step);
  const count = Math.min(MAX_TICKS, Math.floor(high / step) - first + 1);
  return Array.from({ length: Math.max(0, count) }, (_, place) => (first + place) * step);
}
