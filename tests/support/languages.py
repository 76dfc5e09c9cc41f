"""Generated sentences in many scripts: simple subjects and predicates, with each script's marks."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """Any subject goes with any predicate; each ending closes a sentence."""

    subjects: tuple[str, ...]
    predicates: tuple[str, ...]
    ends: tuple[str, ...]
    within: str = " "  #: between subject and predicate
    between: str = " "  #: between sentences
    quote: str = ""  #: a pattern in which a sentence may be quoted, closing mark last

    def sentence(self, draw: random.Random) -> str:
        words = self.within.join((draw.choice(self.subjects), draw.choice(self.predicates)))
        sentence = words + draw.choice(self.ends)
        return self.quote.format(sentence) if self.quote and draw.random() < 0.2 else sentence

    def paragraph(self, draw: random.Random, sentences: int) -> list[str]:
        return [self.sentence(draw) for _ in range(sentences)]


LANGUAGES = {
    "zh": Language(
        ("这只猫", "我的朋友", "那位老师", "小镇的人", "一个农夫", "老国王"),
        ("住在河边的房子里", "每天早上去市场", "喜欢读旧书", "在山上种树", "昨天看见了大海"),
        ("。", "。", "！", "？", "？！"),
        "",
        "",
        "他说：“{}”",
    ),
    "ja": Language(
        ("その猫は", "私の友人は", "あの先生は", "町の人々は", "ある農夫は"),
        (
            "川のそばの家に住んでいる",
            "毎朝市場へ行く",
            "古い本を読む",
            "山に木を植えた",
            "海を見た",
        ),
        ("。", "。", "！", "？"),
        "",
        "",
        "「{}」",
    ),
    "hi": Language(
        ("मेरा मित्र", "गाँव का किसान", "वह लड़का", "बूढ़ा राजा", "हमारा शिक्षक"),
        ("नदी के पास रहता है", "हर सुबह बाज़ार जाता है", "पुरानी किताबें पढ़ता है", "पेड़ लगाता है"),
        ("।", "।", " ।", "॥", "?"),
    ),
    "bn": Language(
        ("আমার বন্ধু", "শিক্ষক", "কৃষক", "বুড়ো রাজা"),
        ("নদীর ধারে থাকে", "প্রতিদিন সকালে বাজারে যায়", "পুরোনো বই পড়ে", "পাহাড়ে গাছ লাগায়"),
        ("।", "।", "?"),
    ),
    "th": Language(
        ("แมวตัวนั้น", "เพื่อนของฉัน", "ครูคนนี้", "ชาวนา", "พระราชา"),
        ("อาศัยอยู่ในบ้านริมแม่น้ำ", "ไปตลาดทุกเช้า", "ชอบอ่านหนังสือเก่า", "ปลูกต้นไม้บนภูเขา"),
        ("",),
        "",
    ),
    "lo": Language(
        ("ເພື່ອນຂອງຂ້ອຍ", "ຄູ", "ຊາວນາ"),
        ("ອາໄສຢູ່ໃກ້ແມ່ນ້ຳ", "ໄປຕະຫຼາດທຸກເຊົ້າ", "ມັກອ່ານປຶ້ມເກົ່າ"),
        ("",),
        "",
    ),
    "km": Language(
        ("មិត្តរបស់ខ្ញុំ", "គ្រូ", "កសិករ"),
        ("រស់នៅជិតទន្លេ", "ទៅផ្សាររាល់ព្រឹក", "ចូលចិត្តអានសៀវភៅចាស់"),
        ("។", "។", "?"),
        "",
    ),
    "my": Language(
        ("ကျွန်ုပ်၏သူငယ်ချင်းသည်", "ဆရာသည်", "လယ်သမားသည်", "ကြောင်သည်"),
        ("မြစ်အနီးတွင်နေထိုင်သည်", "မနက်တိုင်းဈေးသို့သွားသည်", "စာအုပ်ဟောင်းများကိုဖတ်သည်"),
        ("။", "။ ", "၊"),
        "",
        "",
    ),
    "ar": Language(
        ("القط", "صديقي", "المعلم", "الفلاح", "الملك"),
        ("يسكن في بيت قرب النهر", "يذهب إلى السوق كل صباح", "يحب قراءة الكتب القديمة"),
        (".", "؟", "!", "."),
        quote="قال: «{}»",
    ),
    "ur": Language(
        ("میرا دوست", "استاد", "کسان", "بادشاہ"),
        ("دریا کے پاس رہتا ہے", "ہر صبح بازار جاتا ہے", "پرانی کتابیں پڑھتا ہے"),
        ("۔", "۔", "؟"),
    ),
    "am": Language(
        ("ጓደኛዬ", "መምህሩ", "ገበሬው", "ልጁ", "ንጉሡ"),
        ("በወንዙ አጠገብ ይኖራል", "በየጠዋቱ ወደ ገበያ ይሄዳል", "የድሮ መጻሕፍትን ማንበብ ይወዳል", "ዛፎችን ይተክላል"),
        ("።", "።", "፧"),
    ),
    "hy": Language(
        ("Իմ ընկերը", "Ծեր ուսուցիչը", "Գյուղացին"),
        ("ապրում է գետի մոտ", "ամեն առավոտ շուկա է գնում", "սիրում է հին գրքեր կարդալ"),
        ("։",),
        quote="«{}»",
    ),
    "ru": Language(
        ("Мой друг", "Старый учитель", "Тот крестьянин", "Маленький кот"),
        ("живёт в доме у реки", "каждое утро ходит на рынок", "любит читать старые книги"),
        (".", "?", "!"),
    ),
    "ka": Language(
        ("ჩემი მეგობარი", "მოხუცი მასწავლებელი", "ის გლეხი", "პატარა კატა"),
        ("მდინარესთან ცხოვრობს", "ყოველ დილით ბაზარში მიდის", "ძველ წიგნებს კითხულობს"),
        (".", "?", "!"),
    ),
    "he": Language(
        ("החבר שלי", "המורה", "האיכר", "החתול"),
        ("גר בבית ליד הנהר", "הולך לשוק בכל בוקר", "אוהב לקרוא ספרים ישנים"),
        (".", "?", "!"),
    ),
    "bo": Language(
        ("ངའི་གྲོགས་པོ་", "དགེ་རྒན་", "ཞིང་པ་"),
        ("གཙང་པོའི་འགྲམ་ལ་སྡོད", "ཞོགས་པ་ཁྲོམ་ལ་འགྲོ", "དཔེ་ཆ་རྙིང་པ་ཀློག"),
        ("།",),
        "",
    ),
}


def paragraphs_in(code: str, count: int, *, sentences: int = 6, seed: int = 0) -> list[list[str]]:
    """Paragraphs of a language, as lists of sentences; the same for the same arguments."""
    draw = random.Random(f"{code} {seed}")
    return [LANGUAGES[code].paragraph(draw, sentences) for _ in range(count)]


def joined(code: str, sentences: list[str]) -> str:
    return LANGUAGES[code].between.join(sentences).strip()


def articles_in(code: str, count: int, *, paragraphs: int = 4, seed: int = 0) -> list[str]:
    """Documents of a language: paragraphs separated by line feeds."""
    written = [joined(code, p) for p in paragraphs_in(code, count * paragraphs, seed=seed)]
    return ["\n".join(written[i * paragraphs : (i + 1) * paragraphs]) for i in range(count)]
