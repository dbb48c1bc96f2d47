"""A third hundred messages, written before any model was asked about them.

Fifty ordinary ones and fifty scams of today in ten languages. Nothing is tuned to them, and they
may not be changed: once a model has been asked, they only say whether it may be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORDINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        "Running ten late, the 43 never turned up. Order me a flat white and I'll owe you one!",
        (
            "Bins go out tonight instead of Thursday because of the bank holiday. Recycling only,"
            " the green ones are next week."
        ),
        (
            "Ravensbourne Library: 2 items are due back on 9 May. Renew them at the desk or at"
            " https://ravensbourne-libraries.org/my-loans. No fines for children's books."
        ),
        (
            "Hi Dev, could you look over the migration script before standup? It passes on"
            " staging but the index build took 40 minutes there, and prod is about six times the"
            " size."
        ),
        (
            "Your table for 4 at Osteria Lupo is booked for Saturday 19:30. Reply C to cancel. We"
            " hold tables for fifteen minutes."
        ),
    ),
    "de": (
        (
            "Hab den Schlüssel unter den Blumentopf gelegt, die Katze bitte nur morgens"
            " füttern. Bis Sonntag!"
        ),
        (
            "Ihre Brille ist fertig und kann ab sofort bei Optik Seidel abgeholt werden, Mo–Fr 9"
            " bis 18 Uhr. Bitte den Abholschein mitbringen."
        ),
        (
            "Liebe Eltern der 3b, am Dienstag entfällt die letzte Stunde. Die Kinder können bis"
            " 13 Uhr in der Betreuung bleiben. Bitte geben Sie kurz Rückmeldung. Herzliche"
            " Grüße, K. Dorn"
        ),
        "Die Bahn fällt schon wieder aus, ich nehm das Rad. Kannst du dem Chef Bescheid sagen?",
        (
            "Stadtwerke Lindau: Ihr Zählerstand 48.212 kWh ist eingegangen, vielen Dank. Die"
            " Jahresabrechnung kommt im Februar per Post."
        ),
    ),
    "es": (
        (
            "¿Te acuerdas de cómo se llamaba el sitio aquel de las croquetas? Es para llevar a"
            " mis suegros el domingo."
        ),
        (
            "Clínica Dental Arenal le recuerda su revisión el jueves 14 a las 17:15. Si no"
            " puede venir, llámenos al 954 21 00 37."
        ),
        (
            "Chicos, he subido las fotos de la excursión al álbum compartido. Si alguno sale"
            " feo que me avise y la borro jajaja"
        ),
        (
            "Hemos recibido su solicitud de empadronamiento, n.º 2291/26. El plazo de"
            " resolución es de tres meses; no tiene que hacer nada más."
        ),
        (
            "Mañana cortan el agua de 9 a 12 en todo el bloque, llena un par de botellas por si"
            " acaso."
        ),
    ),
    "it": (
        "Nonna dice che il ragù è pronto all'una in punto, chi arriva dopo mangia il pane.",
        (
            "La sua ricetta elettronica è stata rinnovata: NRE 1200A4417906352. Può ritirare il"
            " farmaco in qualsiasi farmacia con la tessera sanitaria."
        ),
        (
            "Ciao a tutti, la riunione di condominio è spostata a mercoledì 22 alle 20:30 in"
            " sala parrocchiale. All'ordine del giorno il tetto e il nuovo ascensore."
        ),
        (
            "Treno 9637 Roma-Milano: ritardo previsto 25 minuti. Può seguire il treno nell'app;"
            " la coincidenza per Bergamo è garantita."
        ),
        "Bellissimo video, soprattutto la parte sul restauro delle cornici. Che colla hai usato?",
    ),
    "nl": (
        (
            "Kun jij vanavond de jongens van training halen? Ik zit vast bij Utrecht door dat"
            " ongeluk op de A2."
        ),
        (
            "Uw fiets staat klaar! De reparatie kostte € 68,50 (nieuwe ketting en remblokken)."
            " We zijn open tot 17.30 uur. Groet, Fietsenmakerij De Spaak"
        ),
        (
            "Beste collega's, de parkeergarage is maandag dicht vanwege onderhoud aan de"
            " slagboom. Kom met de trein of parkeer bij de sporthal."
        ),
        (
            "Gemeente Zwolle: uw paspoort ligt klaar. Maak een afspraak om het op te halen via"
            " https://www.zwolle.nl/afspraak en neem uw oude paspoort mee."
        ),
        "Wat een wedstrijd gisteren, in de 94e minuut nog! Mijn buren dachten dat er brand was.",
    ),
    "pl": (
        "Kupiłam te buty, o których mówiłaś, ale są za małe. Nosisz 39? To ci oddam.",
        (
            "Przychodnia Zdrowie: przypominamy o szczepieniu dziecka w środę o 8:40, gabinet 12."
            " Prosimy zabrać książeczkę zdrowia."
        ),
        (
            "Panie Tomku, kosztorys łazienki wyszedł 14 300 zł z robocizną. Płytki są na"
            " magazynie, więc możemy wejść od poniedziałku. Proszę dać znać, czy pasuje."
        ),
        (
            "Numer zamówienia 77120: książka jest już w druku, wysyłka w przyszłym tygodniu."
            " Gdy paczka wyjedzie, dostaniesz od nas maila z numerem przesyłki."
        ),
        "Ktoś zostawił czarną kurtkę na szatni po koncercie, leży u portiera.",
    ),
    "ru": (
        ("Мам, мы доехали, снега по колено. Баню уже топят, завтра пришлю фотки."),
        (
            "Уважаемые жильцы! 16 апреля с 10:00 до 15:00"
            " плановое отключение электричества в"
            " подъездах 1–4. Лифты работать не будут."
        ),
        (
            "Кто-нибудь пробовал собрать это под ARM? У меня"
            " линкер падает на libcrypto, хотя путь вроде"
            " прописан правильно."
        ),
        ("Ваш талон в МФЦ: Б-047, окно 6, ожидание около 20 минут. Не забудьте паспорт и СНИЛС."),
        (
            "Отдам котят в добрые руки, два мальчика и"
            " девочка, едят всё, к лотку приучены. Забирать"
            " у метро Озерки."
        ),
    ),
    "hi": (
        "पापा की रिपोर्ट ठीक आई है, डॉक्टर ने कहा बस नमक कम करना है। शाम को फोन करता हूँ।",
        (
            "प्रिय अभिभावक, शनिवार को विद्यालय में खेल दिवस है। बच्चों को सफेद जूते और पानी की"
            " बोतल के साथ सुबह 7:30 बजे भेजें।"
        ),
        ("आपकी गैस बुकिंग 40217 दर्ज हो गई है। सिलेंडर दो दिन में पहुँचेगा, भुगतान डिलीवरी के समय 903 रुपये।"),
        "यार कल वाला नोट्स भेज दे, मैं तीसरे लेक्चर में सो गया था 😅",
        "ट्रेन 12951 कोच B4 सीट 22, प्लेटफ़ॉर्म 3 पर आएगी। दस मिनट देरी चल रही है।",
    ),
    "vi": (
        "Chị ơi mai em xin nghỉ buổi sáng để đưa con đi tiêm, chiều em vào làm bù nhé.",
        (
            "Thư viện quận 3 thông báo: sách bạn đặt giữ đã có, vui lòng đến nhận trước"
            " thứ Sáu, mang theo thẻ thư viện."
        ),
        "Tối nay nấu canh chua, anh ghé chợ mua giùm em con cá lóc với ít bạc hà.",
        (
            "Công ty cấp nước: kỳ tháng 4 quý khách dùng 17 m3, số tiền 214.600đ, sẽ trừ tự"
            " động vào ngày 20. Quý khách không cần làm gì thêm."
        ),
        (
            "Bản thiết kế mới đẹp hơn bản cũ nhiều, nhưng chữ ở trang hai hơi nhỏ. Em chỉnh lên"
            " cỡ 11 rồi gửi lại cả nhóm nhé."
        ),
    ),
    "ja": (
        "駅前の本屋さん、今月いっぱいで閉まるらしいよ。寂しいね。",
        "山田歯科です。ご予約は5月12日(火)16時です。変更の場合は前日までにお電話ください。",
        "明日の会議資料、3ページ目のグラフだけ差し替えました。共有フォルダに入れてあります。",
        (
            "町内会からのお知らせ:日曜日の朝8時から公園の草取りを行います。軍手と飲み物をご持参く"
            "ださい。"
        ),
        "お預かりのコート、クリーニングが仕上がりました。営業時間は10時から19時、水曜定休です。",
    ),
}
SCAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "Congestion Charge Office: a penalty of £11.20 from 3 May is unpaid and rises to £168"
            " tonight. Settle it at https://tfl-pay-charge.live/pcn"
        ),
        (
            "Hey it's Mia, long time!! I'm in a young designers contest, can you vote for me?"
            " Enter your number there, you get a code, send me the code so the vote counts:"
            " dsgn-vote.top/mia"
        ),
        (
            "We traced the coins you lost on the trading site. Our recovery lawyers can release"
            " 2.1 BTC to you, the court fee of $480 is payable in USDT before Friday. Telegram"
            " @btc_claim_unit"
        ),
        (
            "I have recorded you through your own webcam while you watched those videos. Send"
            " $1,200 in Litecoin within 40 hours or all of your contacts receive it. I know your"
            " password."
        ),
        (
            "Your page breached our community standards and will be removed permanently in 24h."
            " Appeal now with your login and the two-factor code:"
            " https://meta-appeal-center.help/form"
        ),
    ),
    "de": (
        (
            "Parkraum Service: Ihr QR-Ticket ist ungültig. Zahlen Sie 4,90 EUR innerhalb von 2"
            " Stunden, sonst wird Ihr Fahrzeug abgeschleppt: https://parken-nachzahlung.info/q"
        ),
        (
            "Oma ich bin es, ich hatte einen schlimmen Unfall. Die Polizei will eine Kaution von"
            " 18.000 Euro, ein Kollege holt das Geld bei dir ab. Sag bitte niemandem etwas."
        ),
        (
            "Ihr Kleinanzeigen-Artikel wurde verkauft! Um das Geld zu erhalten, geben Sie"
            " Kartennummer und Kontostand hier ein: kleinanzeigen-sicherbezahlen.shop/48812"
        ),
        (
            "Börsenclub Dr. Reinhardt: unsere KI-Signale brachten diese Woche 47 % Gewinn. Die"
            " Gruppe ist kostenlos, nur noch 6 Plätze frei. Jetzt auf WhatsApp beitreten: +44"
            " 7418 220913"
        ),
        (
            "Ihre Photovoltaik-Förderung über 6.400 € verfällt heute. Bestätigen Sie Ihre IBAN"
            " und Ihren Personalausweis unter foerderung-bund-solar.com, sonst erlischt Ihr"
            " Anspruch."
        ),
    ),
    "es": (
        (
            "DGT: tiene una multa impaga de 30 €. Si no abona hoy, se retirarán 4 puntos de su"
            " carné. Pague aquí https://sede-dgt-multas.top"
        ),
        (
            "Papá, se me cayó el móvil al váter y este es mi número provisional. ¿Me puedes"
            " hacer un Bizum de 890 para el alquiler? Hoy es el último día, luego te lo"
            " devuelvo."
        ),
        (
            "Somos de TikTok Recursos Humanos. Gane de 80 a 300 € al día solo dando me gusta a"
            " vídeos. Escriba a la gestora Carla por WhatsApp +34 611 904 227 y reciba 10 € de"
            " bienvenida."
        ),
        (
            "Alquilo ático en el centro por 450 €, vivo en Londres y no puedo enseñarlo."
            " Transfiera la fianza y le envío las llaves por mensajería, si no le gusta se lo"
            " devuelvo."
        ),
        (
            "Su cuenta CaixaBank será bloqueada: acceso desde Lisboa. Si no ha sido usted,"
            " cancele ahora con su clave de firma en caixa-verifica-acceso.com"
        ),
    ),
    "it": (
        (
            "INPS: le spetta il bonus di 512 euro ma i suoi dati non sono aggiornati. Carichi"
            " documento e selfie entro oggi su https://inps-bonus-pratiche.com"
        ),
        (
            "Gentile cliente, abbiamo bloccato un bonifico di 2.850 euro. Un nostro operatore la"
            " sta per chiamare: sposti subito i risparmi sul conto sicuro che le verrà dettato."
        ),
        (
            "Amore mio, sono bloccato in dogana a Istanbul con i gioielli per te. Mi chiedono"
            " 3.200 euro, mandali con Western Union e martedì sono tra le tue braccia."
        ),
        (
            "Il presentatore svela in diretta come guadagna 9.000 euro al mese: la piattaforma fa"
            " tutto da sola, bastano 250 euro. Iscriviti prima che la banca chiuda il sito:"
            " quantum-rendite.net"
        ),
        (
            "Il suo abbonamento Netflix è sospeso per un problema di pagamento. Aggiorni la"
            " carta entro 12 ore o perderà tutti i profili: http://netflix-rinnova-it.club"
        ),
    ),
    "nl": (
        (
            "Uw DigiD verloopt vandaag. Verleng hem direct via https://digid-verlengen-nu.com om"
            " boetes te voorkomen."
        ),
        (
            "Hoi mam, mijn telefoon is gevallen en dit is tijdelijk mijn nummer. Ik moet dringend"
            " een rekening van 1.480 euro betalen, kun jij voorschieten? Bellen lukt niet."
        ),
        (
            "ING fraudeteam: er is een betaling van € 940 aan Coolblue klaargezet. Onze"
            " medewerker komt uw pas en pincode ophalen om ze veilig te vernietigen. Blijf aan de"
            " lijn."
        ),
        (
            "Gefeliciteerd, u bent uitgekozen voor een Makita-gereedschapskoffer! U betaalt"
            " alleen € 1,95 verzendkosten. Nog 3 op voorraad: http://bouwmarkt-winactie.shop"
        ),
        (
            "CJIB laatste aanmaning: betaal uw openstaande bedrag van 62,50 binnen 24 uur of een"
            " deurwaarder legt beslag op uw inboedel. Betaallink: cjib-regelen.info/tikkie"
        ),
    ),
    "pl": (
        (
            "InPost: Twoja paczka została wstrzymana, brakuje dopłaty 1,27 zł. Ureguluj w"
            " ciągu 12 godzin albo wróci do nadawcy: https://inpost-doplata24.com"
        ),
        (
            "Cześć, pożyczysz mi 600 na BLIK? Stoję w sklepie i karta mi nie działa, oddam"
            " wieczorem. Podaj tylko kod i zatwierdź w aplikacji."
        ),
        (
            "Orlen Inwestycje: zainwestuj 900 zł w gazociąg i odbieraj nawet 11 000 zł"
            " miesięcznie. Program gwarantowany przez państwo, zostaw numer, oddzwoni doradca:"
            " orlen-zysk.pro"
        ),
        (
            "Tu komisarz Nowak z CBŚP. Oszuści mają dostęp do pani konta, bierze pani udział w"
            " tajnej akcji. Proszę wypłacić całą gotówkę i przekazać ją naszemu"
            " funkcjonariuszowi."
        ),
        (
            "Wykryliśmy niedopłatę za prąd 4,82 zł. Dziś o 18:00 nastąpi odłączenie energii."
            " Opłać: https://pge-platnosci-online.top/fv"
        ),
    ),
    "ru": (
        (
            "Здравствуйте, это генеральный директор. С"
            " вами свяжется куратор из ФСБ по поводу утечки"
            " данных. Разговор строго конфиденциальный,"
            " коллегам ни слова, выполняйте его указания."
        ),
        (
            "Вам подарили Telegram Premium на 12 месяцев!"
            " Активируйте подарок, войдя по номеру и коду:"
            " t-premium-gift.ru/get"
        ),
        (
            "Ищем людей на удалёнку, оформление отзывов на"
            " Ozon, от 6000 в день, выплаты каждый вечер на"
            " карту. Опыт не нужен, пишите плюс в личку"
            " @ozon_hr_alina"
        ),
        (
            "Госуслуги: в ваш кабинет выполнен вход из"
            " Днепра, на ваше имя подана заявка на кредит."
            " Срочно позвоните на горячую линию 8 (495) 120-44-19 и"
            " назовите код из СМС."
        ),
        (
            "Мам, я попала в аварию, виновата я. Нужно"
            " срочно 300 тысяч, чтобы не завели дело, к тебе"
            " подъедет водитель следователя. Говорить не"
            " могу, губа разбита."
        ),
    ),
    "hi": (
        (
            "आपका बिजली कनेक्शन आज रात 9:30 बजे काट दिया जाएगा क्योंकि पिछला बिल अपडेट नहीं है।"
            " तुरंत बिजली अधिकारी से संपर्क करें 98310 44721"
        ),
        (
            "मुंबई पुलिस साइबर सेल: आपके आधार से भेजे पार्सल में ड्रग्स मिले हैं। आप डिजिटल"
            " अरेस्ट में हैं, वीडियो कॉल चालू रखें और जाँच के लिए सारा पैसा सरकारी खाते में"
            " डालें।"
        ),
        (
            "प्रिय ग्राहक आपका SBI योनो खाता आज बंद हो जाएगा, पैन कार्ड अपडेट करने के लिए यह APK"
            " डाउनलोड करें: http://sbi-kyc-update.xyz/yono.apk"
        ),
        (
            "घर बैठे रोज़ 3000 से 8000 कमाएँ! बस होटल को रेटिंग देनी है। पहले टास्क के 150 रुपये"
            " तुरंत। टेलीग्राम पर जुड़ें @task_pay_neha"
        ),
        (
            "बधाई हो! KBC लॉटरी में आपके नंबर पर 25 लाख का इनाम निकला है। इनाम लेने के लिए राणा"
            " प्रताप सिंह को व्हाट्सऐप करें और 8,500 प्रोसेसिंग शुल्क जमा करें।"
        ),
    ),
    "vi": (
        (
            "VNeID của bạn chưa đồng bộ mức 2, tài khoản sẽ bị khóa trong hôm nay. Cán bộ"
            " công an phường hướng dẫn cài ứng dụng tại http://vneid-dongbo.cc"
        ),
        (
            "Tuyển cộng tác viên chốt đơn Shopee tại nhà, hoa hồng 15%, thu nhập 500k đến 2"
            " triệu mỗi ngày, hoàn vốn ngay. Kết bạn Zalo 0589 331 204 để nhận nhiệm vụ."
        ),
        (
            "Con chị đang cấp cứu ở bệnh viện Chợ Rẫy, cần mổ gấp. Chị chuyển ngay 30 triệu tạm"
            " ứng vào tài khoản này thì bác sĩ mới mổ được, không kịp đâu chị ơi!"
        ),
        (
            "Vietcombank: thẻ tín dụng của quý khách bị trừ phí thường niên 3.299.000đ. Để"
            " hủy, đăng nhập và nhập mã OTP tại https://vcb-huyphi.top"
        ),
        (
            "Nhóm chuyên gia đọc lệnh vàng 24/7, cam kết lãi 30% mỗi tuần, lỗ hoàn tiền. Nạp"
            " từ 5 triệu vào sàn, rút bất cứ lúc nào. Vào nhóm: t.me/vang_loi_nhuan88"
        ),
    ),
    "ja": (
        (
            "【えきねっと】アカウントの自動退会処理について。24時間以内にログインしないと退会とな"
            "ります。お手続きはこちら https://eki-net-member.cfd"
        ),
        (
            "ETCサービスの支払い方法に問題があり、ご利用を停止しました。至急カード情報を更新して"
            "ください。http://etc-meisai-update.top"
        ),
        (
            "有名投資家が無料で教える株の勉強会です。先月の参加者は平均で資産3倍。LINEグループは"
            "残り5名様、今すぐ追加: line-kabu-vip.com"
        ),
        (
            "スマホで商品のスクショを送るだけの副業、日給3万円保証。登録料はあとで返金されます。"
            "興味のある方はLINEでご連絡ください。"
        ),
        (
            "総務省です。お客様の電話番号は犯罪に使われたため2時間後に停止されます。至急、捜査担"
            "当の警察官にビデオ通話し、口座番号と残高をお伝えください。"
        ),
    ),
}
