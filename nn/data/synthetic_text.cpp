// A grammar without recursion: a paragraph fixes its people, place, thing and weather; sentences are patterns whose
// marks are filled in from it or from word lists.
//
//   $A $B   the two people          $p $q   his/her of A, of B       $s $o   he/she of A, of B
//   $T      the thing               $L      where the thing is       $P      the place
//   $W      the weather             $J      adjective                $M      manner
//   $V      verb with an object     $I      verb without             $N      number      $X      time of day
// A sentence that would begin with a small letter is given a capital.

#include <array>
#include <span>
#include <string_view>

#include <thimble/nn/data/splitmix.h>
#include <thimble/nn/data/synthetic.h>

namespace thimble::data {

namespace synthetic_text_detail {

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

// The most likely pattern first: lower places are chosen more often.
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

}  // namespace synthetic_text_detail

std::string synthetic_text(std::size_t bytes, std::uint64_t seed) {
  SplitMix random(splitmix64(seed));
  std::string text;
  text.reserve(bytes + 1024);
  while (text.size() < bytes) {
    const synthetic_text_detail::Scene scene = synthetic_text_detail::pick_scene(random);
    const std::uint64_t sentences = 3 + random.below(6);
    for (std::uint64_t i = 0; i < sentences; ++i) {
      if (i != 0) text += ' ';
      synthetic_text_detail::append_sentence(text, random, scene);
    }
    text += "\n\n";
  }
  text.resize(bytes);
  return text;
}

}  // namespace thimble::data
