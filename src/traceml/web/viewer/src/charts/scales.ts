/** Where the values of a column lie on an axis from 0 to 1, and the labels beside it. */

import { axisNumber, localTime } from "../numbers";
import type { ExploredColumn } from "../schema";

export interface Tick {
  at: number;
  label: string;
}

export interface Scale {
  column: ExploredColumn;
  isLog: boolean;
  /** By run; NaN where a run has no place. */
  places: Float64Array;
  ticks: readonly Tick[];
  /** The value at a place of the axis; of a category its number, not rounded. */
  valueAt: (place: number) => number;
  placeOf: (value: number) => number;
}

const LETTERS = 18; // of a category beside its axis
const FEW_TICKS = 7;
const FEW_VALUES = 13; // with the missing one
const SPREAD = 0.03; // of the axis

/** `room`: how much of the axis stays free at both ends. */
export function scaleOf(column: ExploredColumn, wantsLog: boolean, room = 0): Scale {
  if (column.kind === "category") return categoryScale(column);
  const isLog = wantsLog && canBeLog(column);
  const [low, high] = extentOf(column.values, isLog);
  const bent = isLog ? Math.log10 : (value: number) => value;
  const straight = isLog ? (value: number) => 10 ** value : (value: number) => value;
  const ends = widened(bent(low), bent(high), room);
  // Halved first: the distance of two of the largest numbers is not a number.
  const width = ends[1] / 2 - ends[0] / 2;
  const placeOf = (value: number): number =>
    isLog && value <= 0 ? NaN : (bent(value) / 2 - ends[0] / 2) / width;
  const valueAt = (place: number): number => straight(ends[0] * (1 - place) + ends[1] * place);
  return {
    column,
    isLog,
    places: Float64Array.from(column.values, (value) => (value === null ? NaN : placeOf(value))),
    ticks: ticksOf(column, isLog, ends, placeOf),
    valueAt,
    placeOf,
  };
}

/** Something has to be above zero for a logarithmic axis. */
export function canBeLog(column: ExploredColumn): boolean {
  return column.kind === "number" && column.values.some((value) => value !== null && value > 0);
}

function categoryScale(column: ExploredColumn): Scale {
  const count = Math.max(1, column.categories.length);
  const placeOf = (value: number): number => (value + 0.5) / count;
  return {
    column,
    isLog: false,
    places: Float64Array.from(column.values, (value) => (value === null ? NaN : placeOf(value))),
    ticks: column.categories.map(({ label }, index) => ({
      at: placeOf(index),
      label: label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label,
    })),
    valueAt: (place) => place * count - 0.5,
    placeOf,
  };
}

/**
 * The same scale for a line per run: runs that share one of a few values lie beside each other, and
 * do not hide behind the last one. Each is moved by little, and always by the same.
 */
export function spreadOut(scale: Scale): Scale {
  const distinct = new Set(scale.column.values).size;
  if (distinct > FEW_VALUES || scale.places.length <= distinct) return scale;
  return {
    ...scale,
    places: scale.places.map((place, run) => place + (((run * 0.618034) % 1) - 0.5) * SPREAD),
  };
}

function extentOf(values: readonly (number | null)[], isLog: boolean): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || (isLog && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A single value lies in the middle. */
function widened(low: number, high: number, room: number): [number, number] {
  if (low === high) {
    const reach = Math.abs(low) / 2 || 1;
    return [low - reach, high + reach];
  }
  const free = (high - low) * room;
  return [low - free, high + free];
}

function ticksOf(
  column: ExploredColumn,
  isLog: boolean,
  ends: readonly [number, number],
  placeOf: (value: number) => number,
): Tick[] {
  const values = fewValues(column) ?? roundTicks(column, isLog, ends);
  const written =
    column.kind === "moment" ? (value: number) => localTime(value, "").slice(5) : axisNumber;
  return values
    .map((value) => ({ at: placeOf(value), label: written(value) }))
    .filter(({ at }) => at > -1e-6 && at < 1 + 1e-6);
}

/** A parameter that was tried with a few values has these as its labels. */
function fewValues({ kind, values }: ExploredColumn): number[] | null {
  const found = new Set<number>();
  for (const value of values) {
    if (value !== null) found.add(value);
    if (found.size > FEW_TICKS) return null;
  }
  return kind === "number" && found.size > 1 ? [...found].sort((one, other) => one - other) : null;
}

function roundTicks(
  { kind }: ExploredColumn,
  isLog: boolean,
  ends: readonly [number, number],
): number[] {
  return isLog ? logTicks(ends) : evenTicks(ends, kind === "moment" ? 3 : 5);
}

/** Round numbers, about so many. */
function evenTicks([low, high]: readonly [number, number], about: number): number[] {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((one) => one >= rough);
  if (step === undefined || !Number.isFinite(step) || step <= 0) return [low, high];
  const first = Math.ceil(low / step);
  const last = Math.floor(high / step);
  const found: number[] = [];
  for (let number = first; number <= last && found.length < 20; number++) {
    found.push(Number((number * step).toPrecision(12)));
  }
  return found;
}

/** Powers of ten, of which there may be too many; between them 2 and 5, where there are few. */
function logTicks([low, high]: readonly [number, number]): number[] {
  const first = Math.floor(low);
  const last = Math.ceil(high);
  const every = Math.max(1, Math.ceil((last - first) / 7));
  const digits = high - low < 2.2 ? [1, 2, 5] : [1];
  const found: number[] = [];
  for (let power = first; power <= last; power += every) {
    for (const digit of digits) found.push(Number(`${digit}e${power}`));
  }
  return found.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9);
}
