/** Axes, grids and sliders that all charts share, so that steps stand under one another. */

import { axisNumber, axisWords, written } from "../numbers";
import type { Axis } from "../schema";
import { colourOf, type Theme } from "../theme";
import type { Chart } from "./engine";
import type { Range, Zoomed } from "./zoom";

export const LEFT = 52;
export const RIGHT = 14;
const TOP = 30;
const BOTTOM = 40;
const SLIDER = 22;

const INK = {
  light: {
    text: "#5a6472",
    line: "#cdd3da",
    grid: "#eceff2",
    fill: "#ffffff",
    window: "#2563b022",
  },
  dark: { text: "#9aa4b2", line: "#3a424d", grid: "#242a32", fill: "#161b22", window: "#6aa7f033" },
} as const;

export function ink(theme: Theme): (typeof INK)[Theme] {
  return INK[theme];
}

/** The place of the picture; `above`: room for something over it. */
export function grid(hasSlider: boolean, above = 0): object {
  return { left: LEFT, right: RIGHT, top: TOP + above, bottom: BOTTOM + (hasSlider ? SLIDER : 0) };
}

/** From the first to the last place where something was measured, or as far as the axis says. */
export function extent({ at, x }: Zoomed): Range {
  const first = Math.min(at[0] ?? Infinity, x.low ?? at[0] ?? 0);
  const last = Math.max(at[at.length - 1] ?? -Infinity, x.high ?? at[at.length - 1] ?? first);
  return last > first ? [first, last] : [first - 0.5, first + 0.5];
}

export function valueAxis(axis: Axis, theme: Theme, more: object): object {
  const { text, line, grid } = ink(theme);
  return {
    type: "value",
    name: axisWords(axis.label, axis.unit),
    nameTextStyle: { color: text, fontSize: 11 },
    axisLabel: { color: text, fontSize: 11, formatter: (value: number) => axisNumber(value) },
    axisLine: { lineStyle: { color: line } },
    splitLine: { lineStyle: { color: grid } },
    ...more,
  };
}

export function stepAxis(axis: Axis, range: Range, theme: Theme): object {
  return valueAxis(axis, theme, {
    min: range[0],
    max: range[1],
    nameLocation: "middle",
    nameGap: 24,
    splitLine: { show: false },
    axisLabel: {
      color: ink(theme).text,
      fontSize: 11,
      hideOverlap: true,
      showMinLabel: false, // the ends of a window are odd numbers, and close to a round one
      showMaxLabel: false,
      formatter: (value: number) => written(value),
    },
  });
}

/** The controls of a zoom; the canvas says where they stand. */
export const CONTROLS = ["drag", "slider"] as const;

export function zoomControls(whole: Range, theme: Theme): object[] {
  const { text, line, fill } = ink(theme);
  const accent = colourOf("info", theme);
  const minValueSpan = Math.min(4, whole[1] - whole[0]);
  return [
    {
      id: CONTROLS[0],
      type: "inside",
      zoomOnMouseWheel: "ctrl", // the wheel alone scrolls the page
      moveOnMouseMove: true,
      preventDefaultMouseMove: false,
      throttle: 16,
      minValueSpan,
      filterMode: "weakFilter", // a finding that reaches out of the window stays
    },
    {
      id: CONTROLS[1],
      type: "slider",
      height: 14,
      bottom: 3,
      left: LEFT,
      right: RIGHT,
      throttle: 16,
      minValueSpan,
      brushSelect: false,
      showDetail: false,
      showDataShadow: false,
      filterMode: "weakFilter",
      borderColor: line,
      backgroundColor: fill,
      fillerColor: ink(theme).window,
      handleStyle: { color: fill, borderColor: accent },
      moveHandleStyle: { color: line },
      emphasis: { handleStyle: { borderColor: accent }, moveHandleStyle: { color: accent } },
      textStyle: { color: text },
    },
  ];
}

interface ZoomEvent {
  start?: number;
  end?: number;
  batch?: readonly { start?: number; end?: number }[];
}

/**
 * The window that a hand has just dragged; `null`: everything. It is read off the chart: by now
 * there may be more steps than were there when the hand took hold.
 */
export function draggedRange(event: unknown, chart: Chart): Range | null {
  const { batch, ...single } = event as ZoomEvent;
  const { start = 0, end = 100 } = batch?.[0] ?? single;
  if (start <= 0.05 && end >= 99.95) return null;
  const stepAt = (x: number): number => chart.convertFromPixel({ gridIndex: 0 }, [x, 0])[0]!;
  return [stepAt(LEFT), stepAt(chart.getWidth() - RIGHT)];
}

/** Which value belongs to a place on the axis. */
export function nearest(at: readonly number[], place: number): number {
  let low = 0;
  let high = at.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (at[middle]! <= place) low = middle;
    else high = middle;
  }
  return Math.abs(at[low]! - place) <= Math.abs((at[high] ?? Infinity) - place) ? low : high;
}

export function canZoom(figure: Zoomed): boolean {
  return figure.zooms && figure.at.length > 8;
}
