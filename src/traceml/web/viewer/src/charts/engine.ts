/** The parts of the charting library that are used, and nothing more of it. */

import { CustomChart, LineChart } from "echarts/charts";
import {
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  MarkLineComponent,
  TooltipComponent,
} from "echarts/components";
import * as echarts from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

echarts.use([
  CanvasRenderer,
  CustomChart,
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  LineChart,
  MarkLineComponent,
  TooltipComponent,
]);

export type Chart = echarts.ECharts;
export type Option = echarts.EChartsCoreOption;

export function newChart(element: HTMLElement): Chart {
  return echarts.init(element, null, { renderer: "canvas" });
}
