#include <thimble/nn/data/synthetic.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include <thimble/nn/data/require.h>
#include <thimble/nn/data/splitmix.h>

namespace thimble::data {

// ---- Figures of pen strokes. First draws a figure for each class: of several candidates, the least similar to earlier
// figures. Then every image bends its class's figure and draws it.

namespace {

struct Point {
  float x, y;  // figures are in [-1, 1] x [-1, 1]
};

constexpr std::size_t corners = 5;
using Figure = std::array<Point, corners>;  // four connected strokes

// A stroke of the pen; `inverse` is 1 / squared length, 0 for a dot.
struct Stroke {
  Point from, along;
  float inverse;
};

Stroke stroke_between(Point from, Point to) {
  const Point along{to.x - from.x, to.y - from.y};
  const float squared = along.x * along.x + along.y * along.y;
  return {from, along, squared > 0 ? 1 / squared : 0.0f};
}

// Strokes of a figure, and one more.
using Strokes = std::array<Stroke, corners>;

Strokes strokes_of(const Figure& figure, const Stroke& last) {
  Strokes strokes{};
  for (std::size_t i = 0; i + 1 < corners; ++i) strokes[i] = stroke_between(figure[i], figure[i + 1]);
  strokes.back() = last;
  return strokes;
}

// Distance from `p` to the nearest stroke.
float distance(Point p, const Strokes& strokes) {
  float nearest = 16;
  for (const Stroke& stroke : strokes) {
    const float dx = p.x - stroke.from.x, dy = p.y - stroke.from.y;
    const float t = std::clamp((dx * stroke.along.x + dy * stroke.along.y) * stroke.inverse, 0.0f, 1.0f);
    const float ex = dx - t * stroke.along.x, ey = dy - t * stroke.along.y;
    nearest = std::min(nearest, ex * ex + ey * ey);
  }
  return std::sqrt(nearest);
}

// A coarse picture of a figure: the nearness of 12 x 12 points to it.
constexpr std::size_t coarse = 12;
using Sketch = std::array<float, coarse * coarse>;

Sketch sketch_of(const Figure& figure) {
  const Strokes strokes = strokes_of(figure, stroke_between(figure[0], figure[1]));
  Sketch sketch{};
  for (std::size_t y = 0; y < coarse; ++y)
    for (std::size_t x = 0; x < coarse; ++x) {
      const Point p{(static_cast<float>(x) + 0.5f) * (2.0f / coarse) - 1,
                    (static_cast<float>(y) + 0.5f) * (2.0f / coarse) - 1};
      sketch[y * coarse + x] = std::max(0.0f, 1 - 2 * distance(p, strokes));
    }
  return sketch;
}

float difference(const Sketch& a, const Sketch& b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum;
}

// Corners on a 4 x 4 grid; successive corners differ.
Figure draw_figure(SplitMix& random) {
  Figure figure{};
  std::uint64_t before = 16;
  for (Point& corner : figure) {
    std::uint64_t place = random.below(16);
    while (place == before) place = random.below(16);
    before = place;
    corner = {static_cast<float>(place % 4) * (2.0f / 3) - 1, static_cast<float>(place / 4) * (2.0f / 3) - 1};
  }
  return figure;
}

std::array<Figure, synthetic_classes> draw_figures() {
  constexpr int candidates = 24;
  std::array<Figure, synthetic_classes> figures{};
  std::array<Sketch, synthetic_classes> sketches{};
  SplitMix random(0x7468696d626c65u);
  for (std::size_t c = 0; c < figures.size(); ++c) {
    float best = -1;
    for (int i = 0; i < candidates; ++i) {
      const Figure figure = draw_figure(random);
      const Sketch sketch = sketch_of(figure);
      float nearest = static_cast<float>(sketch.size());
      for (std::size_t other = 0; other < c; ++other) nearest = std::min(nearest, difference(sketch, sketches[other]));
      if (nearest <= best) continue;
      best = nearest;
      figures[c] = figure;
      sketches[c] = sketch;
    }
  }
  return figures;
}

// Everything that varies from image to image.
struct Style {
  Strokes strokes;                                     // in [0, 1] x [0, 1]; the last one is the stray stroke
  float pen;                                           // half the width of a stroke
  std::array<float, 4> ground, slope_x, slope_y, ink;  // by channel, 0 .. 255
  float noise;
};

Style draw_style(SplitMix& random, const Figure& figure, std::int64_t channels) {
  Style style{};
  const float size_x = random.uniform(0.22f, 0.36f), size_y = random.uniform(0.22f, 0.36f);
  const float slant_x = random.uniform(-0.10f, 0.10f), slant_y = random.uniform(-0.10f, 0.10f);
  const float at_x = random.uniform(0.40f, 0.60f), at_y = random.uniform(0.40f, 0.60f);
  Figure bent_figure{};
  for (std::size_t i = 0; i < corners; ++i) {
    const Point bent{figure[i].x + random.uniform(-0.15f, 0.15f), figure[i].y + random.uniform(-0.15f, 0.15f)};
    bent_figure[i] = {at_x + size_x * bent.x + slant_x * bent.y, at_y + slant_y * bent.x + size_y * bent.y};
  }
  const Point stray{random.uniform(0, 1), random.uniform(0, 1)};
  const Point stray_end{stray.x + random.uniform(-0.3f, 0.3f), stray.y + random.uniform(-0.3f, 0.3f)};
  style.strokes = strokes_of(bent_figure, stroke_between(stray, stray_end));
  style.pen = random.uniform(0.025f, 0.055f);
  style.noise = random.uniform(4, 20);
  // Ink is lighter than the ground in every channel, or darker in every channel.
  const bool is_light = random.below(2) == 0;
  for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
    style.ground[c] = is_light ? random.uniform(10, 110) : random.uniform(145, 245);
    style.ink[c] = style.ground[c] + (is_light ? 1.0f : -1.0f) * random.uniform(60, 135);
    style.slope_x[c] = random.uniform(-30, 30);
    style.slope_y[c] = random.uniform(-30, 30);
  }
  return style;
}

// Roughly normal with deviation 1: the sum of four uniform bytes, centred and scaled.
float draw_noise(std::uint64_t bits) {
  const auto sum = static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255));
  return static_cast<float>(sum - 510) * (1.0f / 148);
}

void draw(const Style& style, std::int64_t size, std::int64_t channels, SplitMix& random, std::uint8_t* pixels) {
  const float pixel = 1.0f / static_cast<float>(size);
  for (std::int64_t y = 0; y < size; ++y)
    for (std::int64_t x = 0; x < size; ++x) {
      const Point p{(static_cast<float>(x) + 0.5f) * pixel, (static_cast<float>(y) + 0.5f) * pixel};
      // A border of one pixel between ink and ground makes lines smooth.
      const float coverage = std::clamp((style.pen - distance(p, style.strokes)) / pixel + 0.5f, 0.0f, 1.0f);
      for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
        const float ground = style.ground[c] + style.slope_x[c] * (p.x - 0.5f) + style.slope_y[c] * (p.y - 0.5f);
        const float value = ground + coverage * (style.ink[c] - ground) + style.noise * draw_noise(random.next());
        *pixels++ = static_cast<std::uint8_t>(std::clamp(value + 0.5f, 0.0f, 255.0f));
      }
    }
}

// ---- A grammar without recursion: a paragraph fixes its people, place, thing and weather; sentences are patterns
// whose marks are filled from it or from word lists.
//
//   $A $B   the two people          $p $q   his/her of A, of B       $s $o   he/she of A, of B
//   $T      the thing               $L      where the thing is       $P      the place
//   $W      the weather             $J      adjective                $M      manner
//   $V      verb with an object     $I      verb without             $N      number      $X      time of day
// Every sentence gets a capital first letter.

using Words = std::span<const std::string_view>;
template <std::size_t n>
using List = std::array<std::string_view, n>;

constexpr List<12> women{"Mara",   "Edith", "Juna",  "Clara", "Ottilie", "Wren",
                         "Hester", "Ida",   "Petra", "Lucy",  "Vera",    "Anne"};
constexpr List<12> men{"Tomas",  "Garrick", "Felix",   "Bram",  "Oswin", "Noah",
                       "Jasper", "Henry",   "Quentin", "Peter", "Zeb",   "Karl"};
constexpr List<14> things{"lantern",     "ladder",        "silver key",   "old map",   "kettle",
                          "fishing net", "violin",        "letter",       "red scarf", "compass",
                          "axe",         "book of songs", "bread basket", "wooden box"};
constexpr List<12> places{"the mill",       "the harbour",      "the orchard",    "the market",
                          "the chapel",     "the lower bridge", "the quarry",     "the inn",
                          "the river bank", "the school",       "the lighthouse", "the upper field"};
constexpr List<10> spots{"under the bench",  "behind the door", "on the shelf",    "beside the well",  "in the cellar",
                         "above the hearth", "near the gate",   "inside the boat", "below the stairs", "at the forge"};
constexpr List<8> weathers{"rain", "snow", "fog", "wind", "frost", "thunder", "sunshine", "drizzle"};
constexpr List<14> adjectives{"quiet", "broken", "heavy", "bright", "narrow", "warm",   "strange",
                              "small", "green",  "dusty", "useful", "empty",  "golden", "crooked"};
constexpr List<10> manners{"slowly", "without a word", "with great care", "at once",        "as always",
                           "gladly", "in a hurry",     "twice",           "by candlelight", "for a while"};
constexpr List<12> verbs{"carried",  "mended", "found", "wanted", "borrowed", "hid",
                         "polished", "forgot", "sold",  "needed", "lifted",   "painted"};
constexpr List<10> acts{"waited",   "laughed",           "slept",     "walked home", "sang", "worked",
                        "listened", "counted the boats", "looked up", "said nothing"};
constexpr List<9> numbers{"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"};
constexpr List<8> times{"in the morning", "at noon",        "before dark", "after supper",
                        "at dawn",        "in the evening", "on Sunday",   "that night"};

// The most likely pattern comes first: pick_skewed prefers lower places.
constexpr List<22> sentences{
    "$A $V the $T $M.",
    "$A and $B met at $P $X.",
    "The $T was $L, where $B had left it.",
    "$B $I $M, and $A $I too.",
    "There was $W over $P, so $A put on $p coat.",
    "$s said that the $T was $J.",
    "$B looked for the $T, but it was $L.",
    "$A gave $p friend $B $N apples.",
    "When the $W came, $o went back to $P.",
    "It was a $J day at $P, with $W $X.",
    "$A did not like the $W; $s liked the $J rooms of $P.",
    "\"Where is the $T?\" asked $A. \"It is $L,\" said $B.",
    "\"I need the $T,\" said $B. $A answered: \"Look $L.\"",
    "\"Who $V the $T?\" asked $A. \"Not I,\" said $B, and $I.",
    "$X $A $I at $P.",
    "Nobody at $P knew why $B $V $q $J $T.",
    "$A owned $N $J cups and one $T, and $s $V them all.",
    "If the $W stays, $A will keep the $T $L.",
    "For $N days $B $I, until $q friend $A came from $P.",
    "\"What $W!\" said $A. \"We shall stay at $P.\"",
    "$o $V it $M and put it $L again.",
    "The people of $P call this the year of the $J $T.",
};

struct Person {
  std::string_view name;
  bool is_woman;
};

struct Scene {
  Person a, b;
  std::string_view thing, place, spot, weather;
};

std::string_view pick(SplitMix& random, Words words) { return words[random.below(words.size())]; }

// The smaller of two draws: earlier words are more frequent, as in real text.
std::string_view pick_skewed(SplitMix& random, Words words) {
  const std::uint64_t first = random.below(words.size()), second = random.below(words.size());
  return words[first < second ? first : second];
}

Person pick_person(SplitMix& random, std::string_view other) {
  Person person{other, false};
  while (person.name == other) {
    person.is_woman = random.below(2) == 0;
    person.name = pick_skewed(random, person.is_woman ? Words(women) : Words(men));
  }
  return person;
}

Scene pick_scene(SplitMix& random) {
  Scene scene{};
  scene.a = pick_person(random, "");
  scene.b = pick_person(random, scene.a.name);
  scene.thing = pick_skewed(random, things);
  scene.place = pick_skewed(random, places);
  scene.spot = pick(random, spots);
  scene.weather = pick_skewed(random, weathers);
  return scene;
}

std::string_view word(SplitMix& random, const Scene& scene, char mark) {
  switch (mark) {
    case 'A':
      return scene.a.name;
    case 'B':
      return scene.b.name;
    case 'p':
      return scene.a.is_woman ? "her" : "his";
    case 'q':
      return scene.b.is_woman ? "her" : "his";
    case 's':
      return scene.a.is_woman ? "she" : "he";
    case 'o':
      return scene.b.is_woman ? "she" : "he";
    case 'T':
      return scene.thing;
    case 'L':
      return scene.spot;
    case 'P':
      return scene.place;
    case 'W':
      return scene.weather;
    case 'J':
      return pick_skewed(random, adjectives);
    case 'M':
      return pick_skewed(random, manners);
    case 'V':
      return pick_skewed(random, verbs);
    case 'I':
      return pick_skewed(random, acts);
    case 'N':
      return pick_skewed(random, numbers);
    default:
      return pick_skewed(random, times);
  }
}

void append_sentence(std::string& text, SplitMix& random, const Scene& scene) {
  const std::size_t begin = text.size();
  const std::string_view pattern = pick_skewed(random, sentences);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '$') {
      text += word(random, scene, pattern[++i]);
    } else {
      text += pattern[i];
    }
  }
  if (text[begin] >= 'a' && text[begin] <= 'z') text[begin] = static_cast<char>(text[begin] - 'a' + 'A');
}

}  // namespace

Images synthetic_images(std::int64_t count, std::int64_t size, std::int64_t channels, std::int64_t classes,
                        std::uint64_t seed) {
  require_between("synthetic_images: count", count, 0, std::int64_t{1} << 32);
  require_between("synthetic_images: size", size, 8, 1024);
  require_between("synthetic_images: channels", channels, 1, 4);
  require_between("synthetic_images: classes", classes, 2, synthetic_classes);
  const auto figures = draw_figures();
  Images images{count, size, size, channels, classes, {}, {}};
  const auto elements = static_cast<std::size_t>(images.image_elements());
  images.pixels.resize(static_cast<std::size_t>(count) * elements);
  images.labels.resize(static_cast<std::size_t>(count));
  for (std::size_t n = 0; n < images.labels.size(); ++n) {
    SplitMix random(splitmix64(splitmix64(seed) + n));
    images.labels[n] = static_cast<std::uint16_t>(random.below(static_cast<std::uint64_t>(classes)));
    const auto style = draw_style(random, figures[images.labels[n]], channels);
    draw(style, size, channels, random, images.pixels.data() + n * elements);
  }
  return images;
}

std::string synthetic_text(std::size_t bytes, std::uint64_t seed) {
  SplitMix random(splitmix64(seed));
  std::string text;
  text.reserve(bytes + 1024);
  while (text.size() < bytes) {
    const Scene scene = pick_scene(random);
    const std::uint64_t sentences = 3 + random.below(6);
    for (std::uint64_t i = 0; i < sentences; ++i) {
      if (i != 0) text += ' ';
      append_sentence(text, random, scene);
    }
    text += "\n\n";
  }
  text.resize(bytes);
  return text;
}

}  // namespace thimble::data
